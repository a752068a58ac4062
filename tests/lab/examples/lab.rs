//! Makes a lab with the hosts named on the command line, says how to enter them, and keeps it until
//! its standard input ends: for looking around by hand, and for the tests of what becomes of a lab
//! whose process is killed.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::Read;

use usher_lab::Lab;

fn main() -> Result<(), Box<dyn Error>> {
    let lab = Lab::new()?;
    let mut hosts = Vec::new();
    for name in std::env::args().skip(1) {
        let host = lab.host(&name)?;
        println!(
            "{name} {} {} enter: nsenter --target {} --all",
            host.ipv4(),
            host.ipv6(),
            host.anchor()
        );
        hosts.push(host);
    }
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
