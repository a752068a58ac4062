//! See setpmac(8).

use std::process::ExitCode;

use clap::Parser;
use label_tools::setpmac::Arguments;

fn main() -> ExitCode {
    Arguments::parse().run()
}
