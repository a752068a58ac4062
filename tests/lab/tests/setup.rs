//! `usher setup`: two hosts without anything, and one command, until a user is served.
//!
//! The lab is the hosts' service manager: their `systemctl` asks this program to start the daemons.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::thread;

use usher_lab::protected::wait_for_listener;
use usher_lab::{Command, Daemon, Host, Lab, Output, PATIENCE, Role};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const PATH: &str = "/run/manager:/run/lab/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Asks the lab to start these units, and waits until they are ready.
const SYSTEMCTL: &str = r#"#!/bin/sh
[ "$1 $2" = "enable --now" ] || exit 1
shift 2
echo "$*" >/run/manager/request
read -r answer </run/manager/answer
[ "$answer" = ready ]
"#;

struct World {
    _lab: Lab,
    laptop: Host,
    mailhost: Host,
}

impl World {
    /// Two hosts, of which one runs sshd and knows the other's root.
    fn new() -> Outcome<(Self, usher_lab::Running)> {
        let lab = Lab::new()?;
        let (laptop, mailhost) = (lab.host("laptop")?, lab.host("mailhost")?);
        laptop.add_account("alice", 1001)?;
        mailhost.add_account("alice", 2001)?;
        for host in [&laptop, &mailhost] {
            host.write_program("/run/manager/systemctl", SYSTEMCTL)?;
            host.run(["mkfifo", "/run/manager/request", "/run/manager/answer"])?;
        }
        for host in [&laptop, &mailhost] {
            host.run(["mkdir", "-m", "700", "-p", "/root/.ssh"])?;
        }
        let key = laptop.make_key("/root/.ssh/id_ed25519")?;
        laptop.write("/root/.ssh/config", "StrictHostKeyChecking accept-new\n")?;
        mailhost.write("/root/.ssh/authorized_keys", key)?;
        mailhost.make_key("/etc/ssh/lab_host_key")?;
        mailhost.run(["mkdir", "-p", "/run/sshd"])?;
        let path = format!("SetEnv=PATH={PATH}");
        let login = "PermitRootLogin=prohibit-password";
        let sshd = [
            "/usr/sbin/sshd",
            "-D",
            "-e",
            "-h",
            "/etc/ssh/lab_host_key",
            "-o",
            &path,
            "-o",
            login,
        ];
        let sshd = mailhost.spawn(sshd)?;
        wait_for_listener(&mailhost, 22)?;
        let world = Self {
            _lab: lab,
            laptop,
            mailhost,
        };
        Ok((world, sshd))
    }

    fn setup(&self, more: &[&str]) -> Command {
        let destination = format!("root@{}", self.mailhost.ipv4());
        let words = [&["usher", "setup", &destination, "--user", "alice"], more].concat();
        self.laptop.command(words).environment("PATH", PATH)
    }

    /// Whether nothing of Usher has been made on a host.
    fn is_untouched(&self, host: &Host) -> bool {
        !host.path("/etc/usher").exists()
    }
}

/// Starts the daemons that a host's `systemctl` is asked for, once.
fn manager(host: &Host) -> thread::JoinHandle<Result<Vec<Daemon>, String>> {
    let host = host.clone();
    thread::spawn(move || {
        let file = |name: &str| -> PathBuf { host.path("/run/manager").join(name) };
        let units = fs::read_to_string(file("request")).map_err(|error| error.to_string())?;
        let daemons = units.split_whitespace().map(|unit| {
            let role = match unit {
                "usher-keeper" => Role::Keeper,
                "usher-verifier" => Role::Verifier,
                "usher-recorder" => Role::Recorder,
                "usher-signer" => Role::Signer,
                "usher-courier" => Role::Courier,
                "usher-proxy" => Role::Proxy,
                _ => return Err(format!("no unit {unit}")),
            };
            host.start_daemon(role).map_err(|error| error.to_string())
        });
        let daemons = daemons.collect::<Result<Vec<_>, _>>();
        let answer = if daemons.is_ok() {
            "ready\n"
        } else {
            "failed\n"
        };
        let written = fs::File::options().write(true).open(file("answer"));
        let written = written.and_then(|mut pipe| pipe.write_all(answer.as_bytes()));
        written.map_err(|error| error.to_string())?;
        daemons
    })
}

fn refused(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    &output.stderr
}

#[test]
fn a_first_user_is_served_after_one_command() -> Outcome {
    let (world, _sshd) = World::new()?;
    let planned = world.setup(&["--dry-run"]).succeed()?;
    assert!(
        planned
            .stderr
            .contains("mailhost# usher init --name mailhost\n"),
        "{planned:?}"
    );
    assert!(
        planned.stderr.contains("--key KEY-OF-mailhost"),
        "{planned:?}"
    );
    // Nobody is at a terminal to be asked.
    let unasked = world.setup(&[]).run()?;
    assert!(refused(&unasked).contains("--yes"), "{unasked:?}");
    assert!(world.is_untouched(&world.laptop) && world.is_untouched(&world.mailhost));

    let managers = [manager(&world.laptop), manager(&world.mailhost)];
    let done = world.setup(&["--yes", "--json"]).succeed()?;
    let mut daemons = Vec::new();
    for manager in managers {
        daemons.extend(manager.join().map_err(|_| "a manager panicked")??);
    }
    let view: serde_json::Value = serde_json::from_str(&done.stdout)?;
    assert!(
        view["served"]
            .as_str()
            .is_some_and(|line| line.starts_with("uid=2001(alice) ")),
        "{view}"
    );
    // Each command was shown before, and the keys are those of the hosts.
    let commands = view["commands"].as_array().ok_or("commands")?;
    let shown: Vec<String> = commands
        .iter()
        .map(|one| {
            format!(
                "{}# {}",
                one["host"].as_str().unwrap_or("?"),
                one["command"].as_str().unwrap_or("?")
            )
        })
        .collect();
    let rest = shown.iter().try_fold(done.stderr.as_str(), |rest, line| {
        Some(rest.split_once(line.as_str())?.1)
    });
    assert!(rest.is_some(), "{shown:?}\n{}", done.stderr);
    let key = world.mailhost.read("/etc/usher/host_key.pub")?;
    assert!(shown.iter().any(
        |line| line.starts_with("laptop# usher host add mailhost") && line.contains(key.trim())
    ));

    // The private key is with the signer only, and ssh's connection has ended.
    let left = world.laptop.run([
        "sh",
        "-c",
        "ls -d /run/usher-setup-* 2>/dev/null; pgrep -x ssh; :",
    ])?;
    assert_eq!(left.stdout, "");
    // The refusal beside the permission: another user, who has the program and no right.
    world.laptop.add_account("bob", 1002)?;
    let other = world
        .laptop
        .command(["usher", "connect", "mailhost:whoami"])
        .user("bob")
        .run()?;
    assert!(
        !other.status.success() && other.stdout.is_empty(),
        "{other:?}"
    );

    // Run again, it finds everything done. The units are up: this systemctl has nothing to start.
    for host in [&world.laptop, &world.mailhost] {
        host.write_program("/run/manager/systemctl", "#!/bin/sh\n")?;
    }
    let again = world.setup(&["--yes", "--json"]).succeed()?;
    let view: serde_json::Value = serde_json::from_str(&again.stdout)?;
    assert_eq!(view["commands"].as_array().map(Vec::len), Some(5), "{view}");
    drop(daemons);
    Ok(())
}

#[test]
fn what_cannot_be_set_up_is_refused_before_anything_changes() -> Outcome {
    let (world, _sshd) = World::new()?;
    let tell = |more: &[&str]| world.setup(&[&["--yes"], more].concat()).run();
    let other_address = tell(&["--address", "192.0.2.77"])?;
    assert!(
        refused(&other_address).contains("none of this host's addresses"),
        "{other_address:?}"
    );
    let same_name = tell(&["--server-name", "laptop"])?;
    assert!(
        refused(&same_name).contains("--server-name"),
        "{same_name:?}"
    );
    let as_alice = world.setup(&["--yes"]).user("alice").run()?;
    assert!(
        refused(&as_alice).contains("run it as root"),
        "{as_alice:?}"
    );
    let to_nobody = [
        "usher",
        "setup",
        "root@192.0.2.250",
        "--user",
        "alice",
        "--yes",
    ];
    let unreached = world
        .laptop
        .command(["timeout", "5"].iter().chain(&to_nobody))
        .run()?;
    assert!(!unreached.status.success(), "{unreached:?}");
    let unknown = [
        "usher",
        "setup",
        &format!("root@{}", world.mailhost.ipv4()),
        "--user",
        "carol",
        "--yes",
    ];
    let unknown = world
        .laptop
        .command(unknown)
        .environment("PATH", PATH)
        .run()?;
    assert!(
        refused(&unknown).contains("has no account carol"),
        "{unknown:?}"
    );
    // A login that is not root's.
    let key = world.mailhost.read("/root/.ssh/authorized_keys")?;
    world
        .mailhost
        .run_as("alice", ["mkdir", "-m", "700", ".ssh"])?;
    let write = world
        .mailhost
        .command(["sh", "-c", "cat >.ssh/authorized_keys"])
        .user("alice");
    write.input(key).succeed()?;
    let login = format!("alice@{}", world.mailhost.ipv4());
    let unprivileged_words = ["usher", "setup", &login, "--user", "alice", "--yes"];
    let unprivileged = world
        .laptop
        .command(unprivileged_words)
        .environment("PATH", PATH)
        .run()?;
    assert!(
        refused(&unprivileged).contains("--sudo"),
        "{unprivileged:?}"
    );
    // Nor may it run commands by sudo, as long as nobody says so.
    let by_sudo = [&unprivileged_words[..], &["--sudo"]].concat();
    let by_sudo = world.laptop.command(by_sudo).environment("PATH", PATH);
    let without_right = by_sudo.run()?;
    assert!(
        refused(&without_right).contains("sudo:"),
        "{without_right:?}"
    );
    assert!(world.is_untouched(&world.laptop) && world.is_untouched(&world.mailhost));
    let right = format!("Defaults secure_path={PATH}\nalice ALL=(root) NOPASSWD: ALL\n");
    world.mailhost.write("/etc/sudoers", right)?;
    // A policy of somebody else's on the server is refused. By sudo it is found as well.
    world.mailhost.write(
        "/etc/usher/policy.d/mine.policy",
        "users u { member alice; }\n",
    )?;
    let has_one = tell(&[])?;
    assert!(refused(&has_one).contains("mine.policy"), "{has_one:?}");
    let has_one = by_sudo.run()?;
    assert!(refused(&has_one).contains("mine.policy"), "{has_one:?}");
    assert!(world.is_untouched(&world.laptop));
    Ok(())
}

#[test]
fn a_command_that_fails_stops_it_and_the_next_run_goes_on() -> Outcome {
    let (world, _sshd) = World::new()?;
    world.mailhost.write_program(
        "/run/manager/systemctl",
        "#!/bin/sh\necho no such unit >&2\nexit 5\n",
    )?;
    let stopped = world.setup(&["--yes"]).run()?;
    let told = refused(&stopped);
    assert!(
        told.contains("  no such unit\n") && told.contains("`systemctl enable --now usher-keeper"),
        "{told}"
    );
    assert!(!told.contains("laptop# systemctl"), "{told}");
    let key = world.laptop.read("/etc/usher/host_key.pub")?;

    world
        .mailhost
        .write_program("/run/manager/systemctl", SYSTEMCTL)?;
    let managers = [manager(&world.laptop), manager(&world.mailhost)];
    let done = world.setup(&["--yes"]).succeed()?;
    assert!(done.stdout.starts_with("uid=2001(alice) "), "{done:?}");
    for manager in managers {
        drop(manager.join().map_err(|_| "a manager panicked")??);
    }
    assert_eq!(world.laptop.read("/etc/usher/host_key.pub")?, key);
    Ok(())
}

#[test]
fn mail_is_served_too() -> Outcome {
    let (world, _sshd) = World::new()?;
    let managers = [manager(&world.laptop), manager(&world.mailhost)];
    let done = world.setup(&["--yes", "--service", "imap"]).succeed()?;
    assert!(done.stdout.starts_with("* PREAUTH "), "{done:?}");
    let mut daemons = Vec::new();
    for manager in managers {
        daemons.extend(manager.join().map_err(|_| "a manager panicked")??);
    }
    // An unmodified program, by the proxy.
    let url = "imap://127.0.2.1/INBOX";
    let list = [
        "curl",
        "--silent",
        "--show-error",
        "--max-time",
        "60",
        "--user",
        "alice:any",
        url,
    ];
    world.laptop.run_as("alice", list)?;
    world.laptop.add_account("bob", 1002)?;
    let other = world.laptop.command(list).user("bob").run()?;
    assert!(!other.status.success(), "{other:?}");
    drop(daemons);
    Ok(())
}

/// Answers the question at a terminal, after something has happened. Waits until `told` is said, and for failure.
fn answer(world: &World, answer: &str, told: &str, meanwhile: impl FnOnce() -> Outcome) -> Outcome {
    let login = format!("root@{}", world.mailhost.ipv4());
    let asks = format!("usher setup {login} --user alice");
    let terminal = [
        "script",
        "--quiet",
        "--return",
        "--command",
        &asks,
        "/dev/null",
    ];
    let mut terminal = world
        .laptop
        .command(terminal)
        .environment("PATH", PATH)
        .spawn()?;
    // The last command that is shown before the question.
    let shown = terminal.read_past("usher connect mailhost:whoami", PATIENCE)?;
    assert!(shown.contains("mailhost# usher "), "{shown}");
    meanwhile()?;
    terminal.write(format!("{answer}\n"))?;
    terminal.read_past(told, PATIENCE)?;
    let status = terminal.wait(PATIENCE)?;
    assert_eq!(status.and_then(|status| status.code()), Some(1));
    Ok(())
}

#[test]
fn a_change_behind_the_question_is_refused() -> Outcome {
    let (world, _sshd) = World::new()?;
    answer(&world, "n", "nothing has changed", || Ok(()))?;
    assert!(world.is_untouched(&world.laptop) && world.is_untouched(&world.mailhost));
    let policy = "/etc/usher/policy.d/mine.policy";
    let write = || {
        Ok(world
            .mailhost
            .write(policy, "users u { member alice; }\n")?)
    };
    answer(&world, "y", "mine.policy", write)?;
    world.mailhost.run(["rm", "-r", "/etc/usher"])?;
    // Nothing stands against the hosts, but other commands would run than those that were shown.
    let prepare = || Ok(world.mailhost.run(["usher", "init"]).map(drop)?);
    answer(&world, "y", "since the commands were shown", prepare)?;
    assert!(world.is_untouched(&world.laptop));
    Ok(())
}
