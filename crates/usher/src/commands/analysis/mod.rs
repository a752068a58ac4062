//! `usher policy explain` and other questions about the policies of one host or of many. This module
//! reads policies and prints answers; `usher-analysis` decides.

mod agree;
pub mod diff;
mod explain;
mod graph;
pub mod hosts;
mod reach;
mod spelling;
mod test;
mod who_can;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use usher_base::{HostName, NameError, ServiceName, UserName};

use self::hosts::Hosts;
use crate::failure::Failure;
use crate::output::Output;

/// The answer is no: refused, different, or no user.
pub const NO: u8 = 1;
/// The known policies do not refuse. The policy of an unknown host, or a certificate that may exist,
/// decides.
pub const NOT_KNOWN: u8 = 5;

const EXIT_STATUS: &str = "\
Exit status:
  0  permitted
  1  refused
  2  the command line or a policy is wrong
  4  a file cannot be read
  5  not refused here, but a policy that is not known here, or a certificate, decides";

/// Questions about policies.
#[derive(Debug, Subcommand)]
pub enum AnalysisCommand {
    /// Explain whether and how a user may use a service, and which lines decide
    #[command(after_help = EXIT_STATUS)]
    Explain {
        /// The user, and the host that the user comes from
        #[arg(value_name = "USER@CLIENT", value_parser = at::<UserName>)]
        user: At<UserName>,
        /// The service and its host
        #[arg(value_name = "SERVICE@SERVER", value_parser = at::<ServiceName>)]
        service: At<ServiceName>,
        /// Ask about this port instead of the service's own
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List who may use a service, and from which hosts
    WhoCan {
        /// The service, and its host if only one counts
        #[arg(value_name = "SERVICE[@SERVER]", value_parser = perhaps_at::<ServiceName>)]
        service: PerhapsAt<ServiceName>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List what a user may use
    Reach {
        /// The user, and the host that the user comes from if only one counts
        #[arg(value_name = "USER[@HOST]", value_parser = perhaps_at::<UserName>)]
        user: PerhapsAt<UserName>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List contradictions between the policies of several hosts
    Agree {
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List the gains and losses of users between two states of the policies
    Diff {
        /// The former state: a directory with a copy of /etc/usher for each host
        old: PathBuf,
        /// The new state, in the same form
        new: PathBuf,
    },
    /// Test the `expect` statements of the policies
    Test {
        #[command(flatten)]
        hosts: Hosts,
    },
    /// Print a graph of users and services, in Graphviz's DOT
    Graph {
        /// Draw a picture with Graphviz's dot instead
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        #[command(flatten)]
        hosts: Hosts,
    },
}

/// A user or service at a host.
#[derive(Debug, Clone)]
pub struct At<N> {
    name: N,
    host: HostName,
}

/// A user or service, at any host if none is named.
#[derive(Debug, Clone)]
pub struct PerhapsAt<N> {
    name: N,
    host: Option<HostName>,
}

fn perhaps_at<N: FromStr<Err = NameError>>(text: &str) -> Result<PerhapsAt<N>, NameError> {
    let (name, host) = match text.split_once('@') {
        Some((name, host)) => (name, Some(host)),
        None => (text, None),
    };
    let name = name.parse()?;
    let host = host.map(str::parse).transpose()?;
    Ok(PerhapsAt { name, host })
}

fn at<N: FromStr<Err = NameError>>(text: &str) -> Result<At<N>, Failure> {
    let PerhapsAt { name, host } = perhaps_at(text).map_err(Failure::refused)?;
    let host = host.ok_or_else(|| Failure::refused("name the host too: NAME@HOST"))?;
    Ok(At { name, host })
}

/// Answers a question. The exit code has the answer for scripts.
pub fn run(output: &Output, command: AnalysisCommand) -> Result<ExitCode, Failure> {
    let code = match command {
        AnalysisCommand::Explain {
            user,
            service,
            port,
            hosts,
        } => explain::run(output, &hosts.load()?, (user, service, port))?,
        AnalysisCommand::WhoCan { service, hosts } => {
            who_can::run(output, &hosts.load()?, &service)
        }
        AnalysisCommand::Reach { user, hosts } => reach::run(output, &hosts.load()?, &user),
        AnalysisCommand::Agree { hosts } => agree::run(output, &hosts.load()?)?,
        AnalysisCommand::Diff { old, new } => {
            diff::run(output, &hosts::load_all(&old)?, &hosts::load_all(&new)?)
        }
        AnalysisCommand::Test { hosts } => test::run(output, &hosts.load()?)?,
        AnalysisCommand::Graph { svg, hosts } => {
            graph::run(output, &hosts.load()?, svg.as_deref())?
        }
    };
    Ok(ExitCode::from(code))
}
