//! The destinations of a service's processes, for every user.

mod greeter;
mod reading;
mod users;

use reading::{Outcome, is_cut};
use usher_lab::{Host, Lab, Mail, PATIENCE, Role, Running, Signal};
use usher_proto::Refusal;

/// Executes the lines that it reads, one by one and by itself, as the user.
const SHELL: &str = "program \"/bin/bash\" \"-c\" \
     \"while read -r deed; do eval \\\"$deed\\\" 2>&1; echo end; done\"; \
     style connection; users mail; hosts laptop;";

const CLIENT: &str = "client more { users mail; service open at mailhost port 7201; \
     service closed at mailhost port 7202; }\n";

/// Accepts connections at two ports for ever.
const LISTEN: &str = "
import selectors, socket
ready = selectors.DefaultSelector()
for port in (9100, 9101):
    listener = socket.create_server(('::', port), family=socket.AF_INET6, dualstack_ipv6=True)
    ready.register(listener, selectors.EVENT_READ)
print('ready', flush=True)
while True:
    for key, _ in ready.select():
        key.fileobj.accept()
";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct World {
    mail: Mail,
    _listeners: Vec<Running>,
}

/// The shell without and with `connect`, and listeners at two other hosts.
fn world(connect: &str) -> Result<World> {
    let mail = Lab::mail()?;
    let mut listeners = Vec::new();
    for host in [&mail.laptop, &mail.stranger] {
        let mut listener = host.spawn(["python3", "-c", LISTEN])?;
        listener.read_past("ready\n", PATIENCE)?;
        listeners.push(listener);
    }
    mail.laptop
        .write("/etc/usher/policy.d/more.policy", CLIENT)?;
    mail.laptop.run(["usher", "policy", "apply"])?;
    let world = World {
        mail,
        _listeners: listeners,
    };
    world.apply(connect)?;
    Ok(world)
}

impl World {
    /// Applies a policy for where processes of `closed` may connect.
    fn apply(&self, connect: &str) -> Outcome {
        let policy = format!(
            "service open {{ listen 7201; {SHELL} }}\n\
             service closed {{ listen 7202; {SHELL} {connect} }}\n"
        );
        let host = &self.mail.mailhost;
        host.write("/etc/usher/policy.d/more.policy", policy)?;
        host.run(["usher", "policy", "apply"])?;
        Ok(())
    }

    fn start(&self, user: &str, service: &str) -> Result<Process> {
        let service = format!("mailhost:{service}");
        let connection = self
            .mail
            .laptop
            .command(["usher", "connect", &service])
            .user(user)
            .spawn()?;
        Ok(Process(connection))
    }
}

/// A process of a service that executes the lines it reads.
struct Process(Running);

impl Process {
    fn does(&mut self, deed: &str) -> Result<String> {
        self.0.write(format!("{deed}\n"))?;
        let said = self.0.read_past("end\n", PATIENCE)?;
        Ok(said.trim_end_matches("end\n").trim_end().to_owned())
    }

    /// The result of connecting, in one word.
    fn reaches(&mut self, address: &str, port: u16) -> Result<&'static str> {
        let said = self.does(&format!(": <>/dev/tcp/{address}/{port} && echo reached"))?;
        outcome(&said)
    }
}

fn outcome(said: &str) -> Result<&'static str> {
    match said {
        "reached" => Ok("reached"),
        said if said.contains("Permission denied") => Ok("refused"),
        other => Err(other.into()),
    }
}

/// The addresses of a host.
fn addresses(host: &Host) -> [String; 2] {
    [host.ipv4().to_string(), host.ipv6().to_string()]
}

// Threat model: A70
#[test]
fn a_service_reaches_what_the_policy_says_and_nothing_else() -> Outcome {
    let world = world("connect laptop port 9100;")?;
    let (laptop, stranger) = (&world.mail.laptop, &world.mail.stranger);
    for user in ["alice", "bob"] {
        let mut open = world.start(user, "open")?;
        let mut closed = world.start(user, "closed")?;
        for address in addresses(laptop) {
            for port in [9100, 9101] {
                assert_eq!(open.reaches(&address, port)?, "reached");
            }
            assert_eq!(closed.reaches(&address, 9100)?, "reached");
            assert_eq!(closed.reaches(&address, 9101)?, "refused");
        }
        for address in addresses(stranger) {
            assert_eq!(open.reaches(&address, 9100)?, "reached");
            assert_eq!(closed.reaches(&address, 9100)?, "refused");
        }
        // Its children, and over UDP.
        let address = stranger.ipv4();
        for deed in [
            format!("bash -c ': <>/dev/tcp/{address}/9100'"),
            format!("setsid bash -c ': <>/dev/tcp/{address}/9100'"),
            format!("unshare --user --map-root-user bash -c ': <>/dev/tcp/{address}/9100'"),
            format!("bash -c 'echo x >/dev/udp/{address}/9100'"),
        ] {
            let deed = format!("{deed} && echo reached");
            assert_eq!(outcome(&open.does(&deed)?)?, "reached", "{deed}");
            assert_eq!(outcome(&closed.does(&deed)?)?, "refused", "{deed}");
        }
        // The user's other processes do not belong to the service.
        let script = format!(": <>/dev/tcp/{address}/9100");
        let elsewhere = world.mail.mailhost.command(["bash", "-c", &script]);
        elsewhere.user(user).succeed()?;
    }
    let refused = world
        .mail
        .mailhost
        .number(Role::Keeper, "connect_refused")?;
    assert_eq!(refused, 2 * (2 + 2 + 4));
    Ok(())
}

#[test]
fn a_change_governs_processes_that_run() -> Outcome {
    let world = world("")?;
    let [laptop, stranger] =
        [&world.mail.laptop, &world.mail.stranger].map(|host| host.ipv4().to_string());
    let mut process = world.start("alice", "closed")?;
    let mut both = || -> Result<[&str; 2]> {
        Ok([
            process.reaches(&laptop, 9100)?,
            process.reaches(&stranger, 9100)?,
        ])
    };
    assert_eq!(both()?, ["reached", "reached"]);
    world.apply("connect laptop;")?;
    assert_eq!(both()?, ["reached", "refused"]);
    world.apply(&format!("connect {stranger};"))?;
    assert_eq!(both()?, ["refused", "reached"]);
    world.apply("connect none;")?;
    assert_eq!(both()?, ["refused", "refused"]);
    world.apply("")?;
    assert_eq!(both()?, ["reached", "reached"]);
    Ok(())
}

// Threat model: A70
#[test]
fn what_is_refused_stays_so_without_the_keeper() -> Outcome {
    let mut world = world("connect laptop;")?;
    let [laptop, stranger] =
        [&world.mail.laptop, &world.mail.stranger].map(|host| host.ipv4().to_string());
    let mut process = world.start("alice", "closed")?;
    assert_eq!(process.reaches(&stranger, 9100)?, "refused");
    world.mail.keeper.kill(Signal::KILL)?;
    world.mail.keeper.wait(PATIENCE)?;
    assert_eq!(process.reaches(&stranger, 9100)?, "refused");
    assert_eq!(process.reaches(&laptop, 9100)?, "reached");
    world.mail.keeper.start()?;
    assert_eq!(process.reaches(&stranger, 9100)?, "refused");
    assert_eq!(process.reaches(&laptop, 9100)?, "reached");
    // The next keeper changes the permissions of an earlier one's processes.
    world.apply("connect none;")?;
    assert_eq!(process.reaches(&laptop, 9100)?, "refused");
    world.apply("")?;
    assert_eq!(process.reaches(&stranger, 9100)?, "reached");
    Ok(())
}

/// Makes the keeper continue without the programs, as if they were unavailable: here another process
/// holds their tables, on other kernels they do not load.
fn without_programs(mail: &mut Mail) -> Result<Running> {
    mail.keeper.stop()?;
    let pins = "/sys/fs/bpf/usher/destinations";
    let script = "exec 9<$0; flock -n 9 && echo ready; read -r";
    let mut holder = mail.mailhost.spawn(["bash", "-c", script, pins])?;
    holder.read_past("ready\n", PATIENCE)?;
    mail.keeper.start()?;
    Ok(holder)
}

#[test]
fn a_service_that_cannot_be_restricted_refuses_its_users() -> Outcome {
    let mut world = world("connect none;")?;
    let _holder = without_programs(&mut world.mail)?;
    let mut open = world.start("alice", "open")?;
    assert_eq!(open.does("echo served")?, "served");
    let told = users::refused(&world.mail, "alice", "mailhost:closed")?;
    assert!(told.contains("has `connect`"), "{told}");
    world.apply("")?;
    let mut closed = world.start("alice", "closed")?;
    assert_eq!(closed.does("echo served")?, "served");
    Ok(())
}

#[test]
fn a_session_ends_if_its_service_cannot_be_restricted() -> Outcome {
    let mut world = world("")?;
    let _holder = without_programs(&mut world.mail)?;
    let mut open = world.start("alice", "open")?;
    let mut closed = world.start("alice", "closed")?;
    world.apply("")?;
    for process in [&mut open, &mut closed] {
        assert_eq!(process.does("echo served")?, "served");
    }
    world.apply("connect none;")?;
    is_cut(&mut closed.0)?;
    let ended = ("alice".into(), Refusal::NoConnectConfinement.name().into());
    assert_eq!(users::recent(&world.mail)?, [ended]);
    assert_eq!(open.does("echo served")?, "served");
    Ok(())
}
