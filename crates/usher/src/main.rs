//! Usher's command line.
#![forbid(unsafe_code)]

mod accounts;
mod commands;
mod excerpt;
mod failure;
mod output;
mod probe;
mod proxy;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use usher_proto::name::{HostName, UserName};

/// Gives every network service the user on the other end. See usher(8).
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    /// Print what a program can read instead of what a person can
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prepare this host: folders, system accounts, host key, the log's key, an example policy
    Init(InitArguments),
    /// Users and their keys on this host
    #[command(subcommand)]
    User(UserCommand),
    /// Hosts of the policy
    #[command(subcommand)]
    Host(HostCommand),
    /// Check, format and apply the policy, and ask who reaches what
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// The signed log of authentications on this host
    #[command(subcommand)]
    Log(LogCommand),
    /// Live sessions, connections and workers on this host
    Who {
        /// The sessions that have ended last, and why, instead
        #[arg(long)]
        recent: bool,
    },
    /// What this kernel and this host can and cannot do
    Doctor,
    /// Connect standard input and output to a service, as the user who runs this
    Connect {
        /// Host and service of the policy
        #[arg(value_name = "HOST:SERVICE")]
        destination: commands::connect::Destination,
    },
    /// Have the ssh-agent of the user who runs this sign for the signer (runs as long as it does)
    Agent,
    /// Serve unmodified programs at local addresses (runs as a daemon)
    Proxy,
}

/// What `usher init` may be told.
#[derive(Debug, Args)]
struct InitArguments {
    /// Name of this host in the policy [default: its host name]
    #[arg(long)]
    name: Option<HostName>,
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Make a user known, or give a known one another key; in force at once
    #[command(group(clap::ArgGroup::new("what")
        .required(true)
        .multiple(true)
        .args(["public_key", "private_key", "agent_key", "certificate"])))]
    Add {
        /// Local account
        name: UserName,
        /// Public key by which the user is known here (server side)
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
        /// Until when the public key is admitted: 2d, 8h, YYYYMMDD[Z] or YYYYMMDDHHMM[SS][Z]
        #[arg(long, value_name = "TIME", requires = "public_key")]
        expires: Option<commands::key_list::Expiry>,
        /// Private key for the signer to keep (client side); the file itself is left alone
        #[arg(long, value_name = "FILE")]
        private_key: Option<PathBuf>,
        /// Public key of the user's that the user's ssh-agent signs with (client side), in place of
        /// a private key
        #[arg(long, value_name = "FILE", conflicts_with = "private_key")]
        agent_key: Option<PathBuf>,
        /// File with the certificate (-cert.pub) of the private key or agent's key, which is given
        /// as well or kept already
        #[arg(long, value_name = "FILE")]
        certificate: Option<PathBuf>,
        /// What the keys are for, by the name that `keys` and `key` of the policy have for it
        #[arg(long, value_name = "NAME")]
        key: Option<usher_policy::Name>,
    },
    /// Refuse a user from now on, and end what is live; in force at once
    Disable {
        /// The user
        name: UserName,
        /// Why, for `usher user list`
        #[arg(long, default_value = "disabled by the administrator")]
        reason: String,
    },
    /// Admit a disabled user again; in force at once
    Enable {
        /// The user
        name: UserName,
    },
    /// Forget a user, or only some of the user's keys; in force at once
    #[command(group(clap::ArgGroup::new("what")
        .multiple(true)
        .args(["public_key", "fingerprint", "signing_key"])))]
    Remove {
        /// The user
        name: UserName,
        /// Forget the public keys in this file, and nothing else
        #[arg(long, value_name = "FILE")]
        public_key: Option<PathBuf>,
        /// Forget the public key with this fingerprint, as `usher who` shows it, and nothing else
        #[arg(long, value_name = "SHA256:...", value_parser = commands::removal::read_fingerprint)]
        fingerprint: Option<usher_local::keys::Fingerprint>,
        /// Forget what the signer keeps for the user to sign with, and nothing else
        #[arg(long)]
        signing_key: bool,
        /// Only keys that are for this, by the name that `keys` and `key` of the policy have for it
        #[arg(long, value_name = "NAME", requires = "what")]
        key: Option<usher_policy::Name>,
    },
    /// Users known on this host
    List,
}

#[derive(Debug, Subcommand)]
enum HostCommand {
    /// Write a host block into the policy folder; `usher policy apply` puts it in force
    Add(HostArguments),
    /// Remove the file that `usher host add` has written; `usher policy apply` puts it in force
    Remove {
        /// Name of the host
        name: HostName,
    },
    /// Hosts of the policy folder
    List,
}

/// A host block's statements.
#[derive(Debug, Args)]
struct HostArguments {
    /// Name of the host
    name: HostName,
    /// Address of the host; repeat for more
    #[arg(long, required = true)]
    address: Vec<std::net::IpAddr>,
    /// Its public key, the line that `usher init` printed there
    #[arg(long)]
    key: String,
    /// Port of its control channel
    #[arg(long, default_value_t = 3440)]
    control: u16,
    /// Local address at which `usher proxy` serves it; repeat for more
    #[arg(long)]
    loopback: Vec<std::net::Ipv4Addr>,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Check policy files, or the whole policy folder
    Check {
        /// Files to check instead of the policy folder
        files: Vec<PathBuf>,
    },
    /// Check the policy folder and put it in force, all of it or nothing
    Apply {
        /// Tell who would gain and who lose what, and which live connections would end, and change
        /// nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print the policy in force, in its canonical form
    Show,
    /// Write policy files in their canonical form; names the files that it has changed
    Fmt {
        /// Files to write instead of those of the policy folder
        files: Vec<PathBuf>,
        /// Name the files that are not in the canonical form, and write nothing
        #[arg(long)]
        check: bool,
    },
    #[command(flatten)]
    Ask(commands::analysis::AnalysisCommand),
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Records of the log, the newest unless told otherwise
    Show {
        /// Index of the first record to show
        #[arg(long, value_name = "INDEX")]
        from: Option<u64>,
        /// Most records to show
        #[arg(long, value_name = "NUMBER", default_value_t = 20)]
        count: u64,
        /// Directory of the log
        #[arg(long, value_name = "DIRECTORY", default_value = usher_local::paths::LOG_DIRECTORY)]
        log: PathBuf,
    },
    /// Check every record, the tree and the checkpoint, and say what is wrong
    Verify {
        /// Checkpoint of this log that was kept elsewhere
        #[arg(long, value_name = "FILE")]
        checkpoint: Option<PathBuf>,
        /// Public key of the log that was kept elsewhere
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Users and the keys known of them, as ssh-keygen's allowed signers
        #[arg(long, value_name = "FILE")]
        signers: Option<PathBuf>,
        /// Where to write the newest checkpoint when all is well
        #[arg(long, value_name = "FILE")]
        keep: Option<PathBuf>,
        /// Directory of the log
        #[arg(long, value_name = "DIRECTORY", default_value = usher_local::paths::LOG_DIRECTORY)]
        log: PathBuf,
    },
    /// Write a record as files that ssh-keygen verifies
    Export {
        /// Index of the record
        index: u64,
        /// Directory to write to
        #[arg(long, value_name = "DIRECTORY")]
        directory: PathBuf,
        /// Directory of the log
        #[arg(long, value_name = "DIRECTORY", default_value = usher_local::paths::LOG_DIRECTORY)]
        log: PathBuf,
    },
}

fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    let output = output::Output { json };
    let result = match command {
        Command::Init(InitArguments { name }) => commands::init::run(&output, name),
        Command::User(UserCommand::Add {
            name,
            public_key,
            expires,
            private_key,
            agent_key,
            certificate,
            key,
        }) => {
            let addition = commands::user::Addition {
                public_key: public_key.as_deref(),
                expires,
                private_key: private_key.as_deref(),
                agent_key: agent_key.as_deref(),
                certificate: certificate.as_deref(),
                purpose: key.as_ref(),
            };
            commands::user::add(&output, &name, &addition)
        }
        Command::User(UserCommand::Disable { name, reason }) => {
            commands::disable::disable(&output, &name, &reason)
        }
        Command::User(UserCommand::Enable { name }) => commands::disable::enable(&output, &name),
        Command::User(UserCommand::Remove {
            name,
            public_key,
            fingerprint,
            signing_key,
            key,
        }) => {
            let keys = commands::removal::Keys {
                public_key: public_key.as_deref(),
                fingerprint,
                signing_key,
                purpose: key.as_ref(),
            };
            match keys {
                commands::removal::Keys {
                    public_key: None,
                    fingerprint: None,
                    signing_key: false,
                    ..
                } => commands::removal::user(&output, &name),
                keys => commands::removal::keys(&output, &name, &keys),
            }
        }
        Command::User(UserCommand::List) => commands::user::list(&output),
        Command::Host(HostCommand::Add(host)) => commands::host::add(&output, &host),
        Command::Host(HostCommand::Remove { name }) => commands::host::remove(&output, &name),
        Command::Host(HostCommand::List) => commands::host::list(&output),
        Command::Policy(PolicyCommand::Check { files }) => commands::policy::check(&output, &files),
        Command::Policy(PolicyCommand::Apply { dry_run: false }) => {
            commands::policy::apply(&output)
        }
        Command::Policy(PolicyCommand::Apply { dry_run: true }) => {
            let told = commands::dry_run::run(&output).map(ExitCode::from);
            return told.unwrap_or_else(|failure| failure.report_unanswered(json));
        }
        Command::Policy(PolicyCommand::Show) => commands::show::run(&output),
        Command::Policy(PolicyCommand::Fmt { files, check }) => {
            commands::format::run(&output, &files, check)
        }
        Command::Policy(PolicyCommand::Ask(question)) => {
            let answered = commands::analysis::run(&output, question);
            return answered.unwrap_or_else(|failure| failure.report_unanswered(json));
        }
        Command::Log(command) => log(&output, command),
        Command::Who { recent: false } => commands::who::run(&output),
        Command::Who { recent: true } => commands::who::recent(&output),
        Command::Doctor => commands::doctor::run(&output),
        Command::Connect { destination } => commands::connect::run(&destination),
        Command::Agent => commands::agent::run(),
        Command::Proxy => proxy::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

fn log(output: &output::Output, command: LogCommand) -> Result<(), failure::Failure> {
    match command {
        LogCommand::Show { from, count, log } => commands::log::show(output, &log, from, count),
        LogCommand::Verify {
            checkpoint,
            key,
            signers,
            keep,
            log,
        } => {
            let verification = commands::log::Verification {
                checkpoint: checkpoint.as_deref(),
                key: key.as_deref(),
                signers: signers.as_deref(),
                keep: keep.as_deref(),
            };
            commands::log::verify(output, &log, &verification)
        }
        LogCommand::Export {
            index,
            directory,
            log,
        } => commands::log::export(output, &log, index, &directory),
    }
}
