//! See setfsmac(8).

use std::process::ExitCode;

use clap::Parser;
use label_tools::setfsmac::Arguments;

fn main() -> ExitCode {
    Arguments::parse().run()
}
