//! Usher's daemons: one binary, one role a process.
//!
//! Room: each role is a process of its own, and touches only what its module says.
#![forbid(unsafe_code)]

mod clocks;
mod courier;
mod exporter;
mod host_key;
mod keeper;
mod kept;
mod labeller;
mod link;
mod local_callers;
mod opening;
mod ports;
mod probe;
mod protector;
mod recorder;
mod release;
mod resolver;
mod signer;
mod start;
mod starter;
mod tls;
mod verifier;
mod workers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use usher_bpf::Step;
use usher_bpf::guard::Role as Owner;
use usher_daemon::watchdog;

/// Usher's daemons. See usherd(8).
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    role: Role,
}

#[derive(Debug, Subcommand)]
enum Role {
    /// Owns the admission tables, the listeners and the workers (server side; root)
    Keeper {
        /// cgroup v2 folder for the workers [default: the keeper's own cgroup]
        #[arg(long, value_name = "DIRECTORY")]
        cgroup: Option<PathBuf>,
        /// cgroup v2 folder: `connect` and the reserved ports apply to processes below it [default: the
        /// whole hierarchy]
        #[arg(long, value_name = "DIRECTORY")]
        users_cgroup: Option<PathBuf>,
        /// Maximum number of sessions
        #[arg(long, value_name = "N", default_value_t = 65_536)]
        sessions: u32,
        /// Maximum number of announced and established connections
        #[arg(long, value_name = "N", default_value_t = 65_536)]
        connections: u32,
        /// Maximum number of pairs of a service and a user
        #[arg(long, value_name = "N", default_value_t = 4_096)]
        listeners: u32,
        /// Load no LSM programs: connections are not fenced, and services with an account are refused
        #[arg(long)]
        without_ownership: bool,
    },
    /// Starts the keeper's workers; only the keeper runs it
    #[command(hide = true)]
    Starter {
        /// Run inside a PAM session, until all processes that descend from this one have ended
        #[arg(long)]
        session: bool,
    },
    /// Speaks to other hosts and checks their requests (server side; user usher-verifier)
    Verifier,
    /// Records in the log what clients have signed (server side; user usher-recorder)
    Recorder,
    /// Keeps the users' keys and signs for them (client side; user usher-signer)
    Signer {
        /// cgroup v2 folder above the users' processes [default: the whole hierarchy]
        #[arg(long, value_name = "DIRECTORY")]
        cgroup: Option<PathBuf>,
    },
    /// Carries the signer's messages to other hosts (client side; user usher-courier)
    Courier,
    /// Protects the traffic of programs by IPsec (root)
    Protector {
        /// cgroup v2 folder whose programs are governed; all of the host's unless given
        #[arg(long, value_name = "DIRECTORY")]
        cgroup: Option<PathBuf>,
        /// Control socket of charon
        #[arg(long, value_name = "SOCKET")]
        vici: Option<PathBuf>,
        /// Load no LSM programs; governed programs are then not held to their protection on packet
        /// sockets, on sockets of other families, and on connections that other programs hand them
        #[arg(long)]
        without_lsm: bool,
    },
    /// Keeps modules of mandatory access control in force (root)
    Labeller,
    /// Looks up the names in `network` statements for the protector (user usher-resolver)
    Resolver,
    /// Answers a Prometheus with the numbers of this host's daemons (user usher-exporter)
    Exporter {
        /// Address and port at which it listens
        #[arg(long, value_name = "ADDRESS:PORT", default_value_t = exporter::LISTEN)]
        listen: SocketAddr,
    },
    /// Keeps the control group of the users' processes while no keeper runs (server side; root)
    Workers,
    /// Removes what stopped daemons have left in the kernel: services' ports, protection, modules (root)
    Release {
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Tests what this kernel can do and prints the results as JSON; `usher doctor` runs it
    #[command(hide = true)]
    Probe {
        /// Test only these features
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
}

impl Role {
    /// The owners of the kernel objects that this role touches (bpf/guard).
    fn owns(&self) -> &'static [Owner] {
        match self {
            Self::Keeper { .. } => &[Owner::Keeper],
            Self::Signer { .. } => &[Owner::Signer],
            Self::Protector { .. } => &[Owner::Protector],
            Self::Labeller => &[Owner::Labeller],
            // It removes the objects that these have left.
            Self::Release { .. } => &[
                Owner::Keeper,
                Owner::Signer,
                Owner::Protector,
                Owner::Labeller,
            ],
            Self::Starter { .. }
            | Self::Verifier
            | Self::Recorder
            | Self::Courier
            | Self::Resolver
            | Self::Exporter { .. }
            | Self::Workers
            | Self::Probe { .. } => &[],
        }
    }
}

fn main() -> ExitCode {
    let Arguments { role } = Arguments::parse();
    usher_daemon::messages::to_standard_error();
    usher_bpf::tell_progress(|step| match step {
        Step::Begins => watchdog::long_work_begins(),
        Step::Ends => watchdog::long_work_ends(),
    });
    match run(role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            usher_daemon::messages::end(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    usher_system::process::end_when_asked()?;
    usher_bpf::guard::declare(role.owns())?;
    match role {
        Role::Keeper {
            cgroup,
            users_cgroup,
            sessions,
            connections,
            listeners,
            without_ownership,
        } => {
            let limits = usher_kernel::admission::Limits {
                sessions,
                admissions: connections,
                listeners,
                tokens: sessions.min(usher_proto::TokenSlot::COUNT),
            };
            keeper::run(cgroup, users_cgroup, &limits, !without_ownership)?;
        }
        Role::Starter { session } => starter::run(session)?,
        Role::Verifier => verifier::run()?,
        Role::Recorder => recorder::run()?,
        Role::Signer { cgroup } => signer::run(cgroup)?,
        Role::Courier => courier::run()?,
        Role::Protector {
            cgroup,
            vici,
            without_lsm,
        } => protector::run(cgroup, vici, !without_lsm)?,
        Role::Labeller => labeller::run()?,
        Role::Resolver => resolver::run()?,
        Role::Exporter { listen } => exporter::run(listen)?,
        Role::Workers => workers::run()?,
        Role::Release { json } => release::run(json)?,
        Role::Probe { names } => probe::run(&names)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptors that the keeper has open for each of its queues.
    const DESCRIPTORS_OF_QUEUE: u32 = 3;

    #[test]
    fn the_keepers_unit_has_room_for_all_its_queues() {
        let unit = include_str!("../../../packaging/systemd/usher-keeper.service");
        let value = |name: &str| {
            let line = unit.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|value| value.rsplit(':').next());
            number.and_then(|number| number.parse::<u32>().ok())
        };
        let Role::Keeper { listeners, .. } = Arguments::parse_from(["usherd", "keeper"]).role
        else {
            panic!("not the keeper");
        };
        assert_eq!(value("FileDescriptorStoreMax="), Some(listeners));
        let descriptors = value("LimitNOFILE=").unwrap();
        assert!(descriptors >= 2 * DESCRIPTORS_OF_QUEUE * listeners);
    }
}
