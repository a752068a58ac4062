//! Usher's command line.
//!
//! Room: with the caller's rights, the administrator's files; daemons only by their control sockets; no BPF.
//! `usher setup` runs other programs, ssh among them.
#![forbid(unsafe_code)]

mod accounts;
mod commands;
mod ending;
mod excerpt;
mod failure;
mod mac;
mod marks;
mod output;
mod probe;
mod protection;
mod proxy;
mod tcp_sockets;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use usher_base::{HostName, UserName};

/// Tells every network service which user is on the other end. See usher(8).
#[derive(Debug, Parser)]
#[command(version, about, propagate_version = true)]
struct Arguments {
    /// Print JSON, for programs
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prepare this host: folders, system accounts, host key, log key, an example policy
    Init {
        /// Name of this host in the policy [default: the system's host name]
        #[arg(long)]
        name: Option<HostName>,
    },
    /// Prepare this host as a client and another, by ssh, as its server, until a first user is served
    Setup(commands::setup::Request),
    /// Print what `usher setup` on another host asks of this one
    SetupFacts {
        /// The user
        user: UserName,
    },
    /// Manage users and their keys on this host
    #[command(subcommand)]
    User(UserCommand),
    /// List the keys of users on this host
    #[command(subcommand)]
    Key(KeyCommand),
    /// Manage the hosts of the policy
    #[command(subcommand)]
    Host(HostCommand),
    /// Check, format, apply and analyse the policy
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Show, verify and export this host's signed log of authentications
    #[command(subcommand)]
    Log(LogCommand),
    /// List the services of this host
    #[command(subcommand)]
    Service(ServiceCommand),
    /// List live sessions, connections and workers on this host
    Who {
        /// List the sessions that ended last, and why they ended
        #[arg(long)]
        recent: bool,
        /// Print a line when a session, connection or refusal comes or goes (keeps running)
        #[arg(long, conflicts_with = "recent")]
        watch: bool,
        #[command(flatten)]
        filter: commands::who::Filter,
    },
    /// Show which user is on the other end of a connection
    Whois {
        /// The client's endpoint
        #[arg(value_name = "ADDRESS:PORT")]
        client: SocketAddr,
    },
    /// Show how the traffic of programs is protected
    #[command(subcommand)]
    Protection(protection::Command),
    /// Load, unload and list modules of mandatory access control; list labels
    #[command(subcommand)]
    Mac(mac::Command),
    /// Test what this kernel and this host can do
    Doctor,
    /// Connect standard input and output to a service, as the calling user
    Connect {
        /// Host and service of the policy
        #[arg(value_name = "HOST:SERVICE")]
        destination: commands::connect::Destination,
    },
    /// Let the calling user's ssh-agent sign for the signer (keeps running)
    Agent,
    /// Serve unmodified programs at local addresses (a daemon)
    Proxy,
    /// Print a shell's completions of this command
    Completions {
        /// The shell
        shell: commands::completions::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum UserCommand {
    /// Add a user, or a key of a user; in force at once
    Add(commands::user::Addition),
    /// Refuse a user and end the user's live sessions; in force at once
    Disable {
        /// The user
        name: UserName,
        /// Reason, for `usher user list`
        #[arg(long, default_value = "disabled by the administrator")]
        reason: String,
    },
    /// Admit a disabled user again; in force at once
    Enable {
        /// The user
        name: UserName,
    },
    /// Give a user's keys to another name; in force at once
    Rename {
        /// The user's name until now
        name: UserName,
        /// The user's new name
        new: UserName,
    },
    /// Remove a user, or some of the user's keys; in force at once
    Remove(commands::removal::Request),
    /// List the users of this host
    List,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// List keys, authorities and certificates of users, and when they expire, the next one first
    List,
}

#[derive(Debug, Subcommand)]
enum HostCommand {
    /// Write a host block into the policy folder; `usher policy apply` puts it in force
    Add(commands::host::Statements),
    /// Remove the file that `usher host add` wrote; `usher policy apply` puts it in force
    Remove {
        /// Name of the host
        name: HostName,
    },
    /// Rename a host in all files of the policy folder; `usher policy apply` puts it in force
    Rename {
        /// Name of the host until now
        name: HostName,
        /// Its new name
        new: HostName,
    },
    /// List the hosts of the policy folder
    List,
    /// Make the key that is to take the present host key's place
    NewKey,
    /// Put the next host key in the present one's place
    UseKey,
    /// Delete the former host key
    ForgetKey,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// List the services of the policy in force, and how many sessions each has
    List,
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
        /// Change nothing; print who would gain or lose access, and which live connections would end
        #[arg(long)]
        dry_run: bool,
        /// Also if a service takes the port of an SSH server, or the one of this session
        #[arg(long)]
        take_ssh_port: bool,
    },
    /// Print the policy in force, in its canonical form
    Show,
    /// List the policies that were in force, or print one of them
    History {
        /// Print the files of the policy of this generation
        generation: Option<u64>,
    },
    /// Put an earlier policy in force, all of it or nothing; users, keys and files stay as they are
    Revert {
        /// Its generation, as `usher policy history` lists it [default: the last other policy]
        generation: Option<u64>,
        /// Also if a service takes the port of an SSH server, or the one of this session
        #[arg(long)]
        take_ssh_port: bool,
        /// Also if hosts, host keys or users come back that the policy in force does not have
        #[arg(long)]
        readmit: bool,
    },
    /// Rewrite policy files in their canonical form, and print the names of changed files
    Fmt {
        /// Files to rewrite instead of those of the policy folder
        files: Vec<PathBuf>,
        /// Write nothing; print the names of files that are not in canonical form
        #[arg(long)]
        check: bool,
    },
    #[command(flatten)]
    Ask(commands::analysis::AnalysisCommand),
}

#[derive(Debug, Subcommand)]
enum LogCommand {
    /// Print records of the log, by default the newest
    Show(commands::log::Selection),
    /// Check every record, the tree and the checkpoint
    Verify(commands::log::Verification),
    /// Write a record as files for `ssh-keygen -Y verify`
    Export(commands::log::Export),
    /// Make the key that takes the place of the log's key when the recorder is started again
    NewKey,
    /// Delete the log's former private key, which the next one has replaced
    ForgetKey,
}

fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    let output = output::Output { json };
    usher_daemon::control::tell_of_waiting(|role, time| {
        output::tell(&format!(
            "usher: the {role} is still at work after {} s (a busy machine takes minutes to load programs); \
             waiting\n",
            time.as_secs()
        ));
    });
    let result = match command {
        Command::Init { name } => commands::init::run(&output, name),
        Command::Setup(request) => commands::setup::run(&output, &request),
        Command::SetupFacts { user } => commands::setup::print_facts(&user),
        Command::User(UserCommand::Add(addition)) => commands::user::add_user(&output, &addition),
        Command::User(UserCommand::Disable { name, reason }) => {
            commands::disable::disable(&output, &name, &reason)
        }
        Command::User(UserCommand::Enable { name }) => commands::disable::enable(&output, &name),
        Command::User(UserCommand::Rename { name, new }) => {
            commands::rename::user(&output, &name, &new)
        }
        Command::User(UserCommand::Remove(request)) => commands::removal::remove(&output, &request),
        Command::User(UserCommand::List) => commands::user::list_users(&output),
        Command::Key(KeyCommand::List) => commands::keys::list_keys(&output),
        Command::Host(HostCommand::Add(host)) => commands::host::add_host(&output, &host),
        Command::Host(HostCommand::Remove { name }) => commands::host::remove(&output, &name),
        Command::Host(HostCommand::Rename { name, new }) => {
            commands::rename::host(&output, &name, &new)
        }
        Command::Service(ServiceCommand::List) => commands::service::list_services(&output),
        Command::Host(HostCommand::List) => commands::host::show(&output),
        Command::Host(HostCommand::NewKey) => commands::host_key::make_next(&output),
        Command::Host(HostCommand::UseKey) => commands::host_key::use_next(&output),
        Command::Host(HostCommand::ForgetKey) => commands::host_key::forget_former(&output),
        Command::Policy(PolicyCommand::Check { files }) => {
            commands::policy::check_files(&output, &files)
        }
        Command::Policy(PolicyCommand::Apply {
            dry_run: false,
            take_ssh_port,
        }) => commands::policy::apply(&output, take_ssh_port),
        Command::Policy(PolicyCommand::Apply {
            dry_run: true,
            take_ssh_port,
        }) => {
            let told = commands::dry_run::run(&output, take_ssh_port).map(ExitCode::from);
            return told.unwrap_or_else(|failure| failure.report_unanswered(json));
        }
        Command::Policy(PolicyCommand::Show) => commands::show::run(&output),
        Command::Policy(PolicyCommand::History { generation: None }) => {
            commands::history::list_history(&output)
        }
        Command::Policy(PolicyCommand::History {
            generation: Some(generation),
        }) => commands::history::show(&output, generation),
        Command::Policy(PolicyCommand::Revert {
            generation,
            take_ssh_port,
            readmit,
        }) => commands::history::revert(&output, generation, take_ssh_port, readmit),
        Command::Policy(PolicyCommand::Fmt { files, check }) => {
            commands::format::run(&output, &files, check)
        }
        Command::Policy(PolicyCommand::Ask(question)) => {
            let answered = commands::analysis::run(&output, question);
            return answered.unwrap_or_else(|failure| failure.report_unanswered(json));
        }
        Command::Log(LogCommand::Show(selection)) => commands::log::show(&output, &selection),
        Command::Log(LogCommand::Verify(request)) => commands::log::verify(&output, &request),
        Command::Log(LogCommand::Export(request)) => commands::log::export(&output, &request),
        Command::Log(LogCommand::NewKey) => commands::log::make_next(&output),
        Command::Log(LogCommand::ForgetKey) => commands::log::finish_change(&output),
        Command::Who {
            recent: true,
            filter,
            ..
        } => commands::who::recent(&output, &filter),
        Command::Who {
            watch: true,
            filter,
            ..
        } => commands::who::watch(&output, &filter),
        Command::Who { filter, .. } => commands::who::run(&output, &filter),
        Command::Whois { client } => commands::whois::run(&output, client),
        Command::Protection(command) => protection::run(&output, &command),
        Command::Mac(command) => mac::run(&output, &command),
        Command::Doctor => commands::doctor::run(&output),
        Command::Connect { destination } => commands::connect::run(&destination),
        Command::Agent => commands::agent::run(),
        Command::Proxy => proxy::run(),
        Command::Completions { shell } => commands::completions::print(shell, Arguments::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
