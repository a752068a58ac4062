//! See getfmac(8).

use std::process::ExitCode;

use clap::Parser;
use label_tools::getfmac::Arguments;

fn main() -> ExitCode {
    Arguments::parse().run()
}
