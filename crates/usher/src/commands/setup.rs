//! `usher setup`: prepares this host as a client and another one, by ssh, as its server, until a first user
//! is served. It runs the commands of docs/start.md and shows each before. Run again, it goes on where it has
//! stopped.

mod facts;
mod machine;
mod objections;
mod plan;
mod site;

use std::fs::Permissions;
use std::io::{IsTerminal, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;
use usher_base::{HostName, UserName};

use crate::failure::{At, Failure};
use crate::output::{Output, escaped, tell};
use facts::Facts;
use machine::{Machine, Ssh};
use plan::Step;
use site::{Offered, Side, Site};

/// The folder for what one run needs: a private key until the signer has it, and ssh's socket.
const RUN: &str = "/run";

/// Setup refuses a larger difference of clocks, in seconds, because it would later look like another fault.
const CLOCKS_DIFFER: f64 = 20.0;

/// Options of `usher setup`.
#[derive(Debug, clap::Args)]
pub struct Request {
    /// The server, as ssh takes it; ssh logs in there as root, or see --sudo
    #[arg(value_name = "[LOGIN@]HOST")]
    destination: String,
    /// The first user, who has an account on both hosts
    #[arg(long)]
    user: UserName,
    /// What the server offers to the user
    #[arg(long, value_enum, default_value_t = Offered::Whoami)]
    service: Offered,
    /// Name of this host in the policy [default: the system's host name]
    #[arg(long)]
    name: Option<HostName>,
    /// Name of the server in the policy [default: its system's host name]
    #[arg(long, value_name = "NAME")]
    server_name: Option<HostName>,
    /// Address of this host [default: the one from which ssh reaches the server]
    #[arg(long)]
    address: Option<IpAddr>,
    /// Address of the server [default: the one at which ssh reaches it]
    #[arg(long, value_name = "ADDRESS")]
    server_address: Option<IpAddr>,
    /// Run the server's commands by `sudo -n`, for a login that is not root's
    #[arg(long)]
    sudo: bool,
    /// Print the commands and run none
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do not ask before the first command
    #[arg(long)]
    yes: bool,
}

/// The result of `usher setup`, as JSON.
#[derive(Debug, Serialize)]
struct View {
    /// This host.
    client: HostName,
    /// The other one.
    server: HostName,
    /// The commands that were run, or with --dry-run those that would be.
    commands: Vec<CommandOnHost>,
    /// The first line that the service sent to the user; null with --dry-run.
    served: Option<String>,
}

/// A command of `usher setup`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct CommandOnHost {
    /// The host on which it runs.
    host: HostName,
    /// The command, as a shell takes it.
    command: String,
}

impl CommandOnHost {
    fn line(&self) -> String {
        format!("{}# {}\n", self.host, self.command)
    }
}

/// Prints what `usher setup` on another host has to know about this one, as JSON, and changes nothing.
///
/// # Errors
/// When files of this host cannot be read.
pub fn print_facts(user: &UserName) -> Result<(), Failure> {
    // JSON of `usher setup-facts`: [`Facts`].
    Output { json: true }.print(&Facts::of_this_host(user)?, String::new);
    Ok(())
}

/// Sets both hosts up.
///
/// # Errors
/// When a host is already set up in another way, before anything changes. When a command fails: what was done
/// before stays.
pub fn run(output: &Output, request: &Request) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::refused(
            "`usher setup` prepares this host; run it as root",
        ));
    }
    let folder = tempfile::Builder::new()
        .prefix("usher-setup-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(RUN);
    let folder = folder.at(RUN)?;
    let mut hosts = Hosts::meet(request, folder.path())?;
    let steps = hosts.steps()?;
    let planned: Vec<CommandOnHost> = steps.iter().map(|step| hosts.shown(step)).collect();
    if !request.yes && (!output.json || !request.dry_run) {
        tell(&escaped(&format!("{}\n", hosts.site.purpose())));
        planned
            .iter()
            .for_each(|command| tell(&escaped(&format!("  {}", command.line()))));
    }
    let (commands, served) = if request.dry_run {
        (planned, None)
    } else {
        if !request.yes {
            ask()?;
            hosts.require_as_shown(&planned, &request.user)?;
        }
        hosts.set_up(&request.user)?
    };
    let view = View {
        client: hosts.site.client.clone(),
        server: hosts.site.server.clone(),
        commands,
        served,
    };
    // JSON of `usher setup`: [`View`].
    output.print(&view, || match &view.served {
        Some(line) => format!(
            "{line}\n\n{} is served. `usher who` on {} shows the session; docs/start.md goes on from step 8.",
            request.user, view.server
        ),
        None => String::new(),
    });
    Ok(())
}

/// Both hosts, as they were found.
struct Hosts {
    machine: Machine,
    site: Site,
    here: Facts,
    there: Facts,
}

impl Hosts {
    /// Looks at both hosts.
    fn meet(request: &Request, folder: &Path) -> Result<Self, Failure> {
        let machine = Machine::by_ssh(Ssh::new(&request.destination, folder, request.sudo));
        let here = Facts::of_this_host(&request.user)?;
        let there = Facts::of(&machine, &request.user)?;
        if there.ahead.abs() > CLOCKS_DIFFER {
            return Err(Failure::Refused(format!(
                "the clock of {} is {:.0} s {} this host's, and Usher takes 30 s at most: set both (chrony, \
                 systemd-timesyncd), and run this again",
                request.destination,
                there.ahead.abs(),
                if there.ahead > 0.0 {
                    "ahead of"
                } else {
                    "behind"
                }
            )));
        }
        let (address, server_address) = addresses(request, &machine)?;
        let site = Site {
            client: here.host_name(request.name.as_ref(), "--name")?,
            server: there.host_name(request.server_name.as_ref(), "--server-name")?,
            address,
            server_address,
            user: request.user.clone(),
            offered: request.service,
            key: folder.join("key"),
        };
        site.require(&here, &there)?;
        Ok(Self {
            machine,
            site,
            here,
            there,
        })
    }

    /// All steps.
    fn steps(&self) -> Result<Vec<Step>, Failure> {
        Ok([self.site.first(&self.here, &self.there), self.then()?].concat())
    }

    fn look_again(&mut self, user: &UserName) -> Result<(), Failure> {
        self.here = Facts::of_this_host(user)?;
        self.there = Facts::of(&self.machine, user)?;
        self.site.require(&self.here, &self.there)
    }

    /// Looks at both hosts again after a question, whose answer may have taken any time.
    fn require_as_shown(
        &mut self,
        planned: &[CommandOnHost],
        user: &UserName,
    ) -> Result<(), Failure> {
        self.look_again(user)?;
        let steps = self.steps()?;
        if steps
            .iter()
            .map(|step| self.shown(step))
            .eq(planned.iter().cloned())
        {
            return Ok(());
        }
        Err(Failure::refused(
            "the hosts have changed since the commands were shown; nothing was done. Run this again",
        ))
    }

    /// The steps that need what the first ones make.
    fn then(&self) -> Result<Vec<Step>, Failure> {
        self.site.then(&self.here, &self.there)
    }

    /// Runs all steps, the last of which is the user's first connection. Returns the commands and the line that
    /// the user got.
    fn set_up(&mut self, user: &UserName) -> Result<(Vec<CommandOnHost>, Option<String>), Failure> {
        let first = self.site.first(&self.here, &self.there);
        let mut commands = Vec::new();
        for step in &first {
            self.run(step, &mut commands)?;
        }
        // The signer has the user's key. The folder is removed at the end, unless this process is killed.
        match std::fs::remove_file(&self.site.key) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).at(&self.site.key);
            }
            _ => {}
        }
        self.look_again(user)?;
        if let Some(step) = self.site.first(&self.here, &self.there).first() {
            return Err(Failure::Refused(format!(
                "`{}` has succeeded on {} and changed nothing there",
                step.command(),
                self.name(step.side)
            )));
        }
        let mut answer = Vec::new();
        for step in &self.then()? {
            answer = self.run(step, &mut commands)?;
        }
        let answer = String::from_utf8_lossy(&answer);
        Ok((commands, answer.lines().next().map(str::to_owned)))
    }

    fn run(&self, step: &Step, commands: &mut Vec<CommandOnHost>) -> Result<Vec<u8>, Failure> {
        let shown = self.shown(step);
        tell(&escaped(&shown.line()));
        commands.push(shown);
        let here = Machine::Here;
        let machine = match step.side {
            Side::Client => &here,
            Side::Server => &self.machine,
        };
        let output = machine.run(&step.words, step.input.as_deref())?;
        let said = String::from_utf8_lossy(&output.stderr);
        for line in said.lines() {
            tell(&escaped(&format!("  {line}\n")));
        }
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(Failure::Refused(format!(
            "`{}` has failed on {} ({}); what was done before stays. Mend what it says, and run the same \
             `usher setup` again, which goes on from there",
            step.command(),
            self.name(step.side),
            output.status
        )))
    }

    fn name(&self, side: Side) -> &HostName {
        match side {
            Side::Client => &self.site.client,
            Side::Server => &self.site.server,
        }
    }

    fn shown(&self, step: &Step) -> CommandOnHost {
        CommandOnHost {
            host: self.name(step.side).clone(),
            command: step.command(),
        }
    }
}

/// The addresses of this host and of the server, each as the other one sees it.
fn addresses(request: &Request, machine: &Machine) -> Result<(IpAddr, IpAddr), Failure> {
    let seen = match (request.address, request.server_address) {
        (Some(own), Some(server)) => return Ok((own, server)),
        _ => machine.addresses()?,
    };
    let own = request.address.unwrap_or(seen.0);
    if UdpSocket::bind((own, 0)).is_err() {
        return Err(Failure::Refused(format!(
            "{} sees this host at {own}, which is none of this host's addresses: NAT or another host is \
             between them, and Usher needs addresses that arrive as they were sent. Where they have a direct \
             way too, give its ends by --address and --server-address",
            request.destination
        )));
    }
    Ok((own, request.server_address.unwrap_or(seen.1)))
}

/// Asks the person at the terminal.
fn ask() -> Result<(), Failure> {
    let mut input = std::io::stdin();
    if !input.is_terminal() {
        return Err(Failure::refused(
            "nobody is there to be asked; nothing has changed. Give --yes to run these commands unasked",
        ));
    }
    tell("Run them? [y/N] ");
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&mut input), &mut answer)
        .attempt("cannot read the answer")?;
    if matches!(answer.trim(), "y" | "Y" | "yes") {
        Ok(())
    } else {
        Err(Failure::refused("nothing has changed"))
    }
}
