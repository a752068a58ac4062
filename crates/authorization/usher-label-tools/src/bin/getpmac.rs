//! See getpmac(8).

use std::process::ExitCode;

use clap::Parser;
use label_tools::getpmac::Arguments;

fn main() -> ExitCode {
    Arguments::parse().run()
}
