//! See setfmac(8).

use std::process::ExitCode;

use clap::Parser;
use label_tools::setfmac::Arguments;

fn main() -> ExitCode {
    Arguments::parse().run()
}
