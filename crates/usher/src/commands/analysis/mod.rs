//! `usher policy explain` and the like: who reaches what, by the policies of one host or of many.
//! What is decided, `usher-analysis` decides; here policies are read and answers are shown.

mod agree;
pub mod diff;
mod explain;
mod graph;
pub mod hosts;
mod lines;
mod reach;
mod spelling;
mod test;
mod who_can;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::Subcommand;
use usher_proto::name::{HostName, ServiceName, UserName};

use self::hosts::Hosts;
use crate::failure::Failure;
use crate::output::Output;

/// The answer is no: nobody, refused, different.
pub const NO: u8 = 1;
/// What is known does not refuse; another host's policy, or a certificate, decides, of which it is
/// not known whether there is one.
pub const NOT_KNOWN: u8 = 5;

/// Questions about policies.
#[derive(Debug, Subcommand)]
pub enum AnalysisCommand {
    /// Say whether a user may use a service, how, and which lines decide
    Explain {
        /// The user, and the host from which
        #[arg(value_name = "USER@CLIENT", value_parser = at::<UserName>)]
        user: At<UserName>,
        /// The service and its host
        #[arg(value_name = "SERVICE@SERVER", value_parser = at::<ServiceName>)]
        service: At<ServiceName>,
        /// Whether at this port, and not at the one where it is
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
        port: Option<u16>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List who may use a service, and from which hosts
    WhoCan {
        /// The service, and its host if one is meant
        #[arg(value_name = "SERVICE[@SERVER]", value_parser = perhaps_at::<ServiceName>)]
        service: PerhapsAt<ServiceName>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// List what a user may use
    Reach {
        /// The user, and the host from which if one is meant
        #[arg(value_name = "USER[@HOST]", value_parser = perhaps_at::<UserName>)]
        user: PerhapsAt<UserName>,
        #[command(flatten)]
        hosts: Hosts,
    },
    /// Tell where the policies of several hosts contradict each other
    Agree {
        #[command(flatten)]
        hosts: Hosts,
    },
    /// Tell who gains and who loses what from one state of the policies to another
    Diff {
        /// A directory with a copy of /etc/usher for each host, as it was
        old: PathBuf,
        /// The same as it is to be
        new: PathBuf,
    },
    /// Try the `expect` statements of the policies
    Test {
        #[command(flatten)]
        hosts: Hosts,
    },
    /// Draw who may use what, as Graphviz's DOT
    Graph {
        /// Write a picture with Graphviz's dot instead
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
        #[command(flatten)]
        hosts: Hosts,
    },
}

/// Somebody or something at a host.
#[derive(Debug, Clone)]
pub struct At<N> {
    name: N,
    host: HostName,
}

/// The same, at any host if none is named.
#[derive(Debug, Clone)]
pub struct PerhapsAt<N> {
    name: N,
    host: Option<HostName>,
}

fn perhaps_at<N: FromStr>(text: &str) -> Result<PerhapsAt<N>, String>
where
    N::Err: std::fmt::Display,
{
    let (name, host) = match text.split_once('@') {
        Some((name, host)) => (name, Some(host)),
        None => (text, None),
    };
    let name = name.parse().map_err(|error: N::Err| error.to_string())?;
    let host = host.map(|host| host.parse().map_err(|error| format!("{error}")));
    let host = host.transpose()?;
    Ok(PerhapsAt { name, host })
}

fn at<N: FromStr>(text: &str) -> Result<At<N>, String>
where
    N::Err: std::fmt::Display,
{
    let PerhapsAt { name, host } = perhaps_at(text)?;
    let host = host.ok_or("name the host, too: NAME@HOST")?;
    Ok(At { name, host })
}

/// Answers a question. The code says what the answer is, for scripts.
///
/// # Errors
/// When policies cannot be read or have mistakes, or a host of the question is not known.
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
