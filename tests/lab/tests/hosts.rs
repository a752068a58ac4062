//! Hosts of a lab: separate where they should be, connected where they should be.
#![forbid(unsafe_code)]

use std::error::Error;
use std::fs;
use std::time::Duration;

use usher_lab::{Lab, LabError, PATIENCE, Signal, eventually};

type Result = std::result::Result<(), Box<dyn Error>>;

#[test]
fn hosts_reach_each_other_over_tcp_on_both_families() -> Result {
    let lab = Lab::new()?;
    let (one, two) = (lab.host("one")?, lab.host("two")?);
    for (listen, server) in [
        ("TCP4-LISTEN:7000", format!("TCP4:{}:7000", two.ipv4())),
        ("TCP6-LISTEN:7001", format!("TCP6:[{}]:7001", two.ipv6())),
    ] {
        let mut echo = two.spawn(["socat", "-t500", "-d", "-d", listen, "EXEC:cat"])?;
        while !echo.stderr()?.contains("listening on") {
            assert!(!echo.has_ended()?, "{}", echo.stderr()?);
            std::thread::sleep(Duration::from_millis(2));
        }
        let output = one
            .command(["socat", "-t500", "-", &server])
            .input("over the wire")
            .succeed()?;
        assert_eq!(output.stdout, "over the wire", "{server}");
    }
    // The twin: without the listener nothing answers there.
    let refused = one
        .command(["socat", "-", &format!("TCP4:{}:7002", two.ipv4())])
        .run()?;
    assert!(
        refused.stderr.contains("Connection refused"),
        "{}",
        refused.stderr
    );
    Ok(())
}

#[test]
fn the_machine_sees_nothing_of_the_labs_network() -> Result {
    let interfaces = || fs::read_to_string("/proc/self/net/dev");
    let names = |text: String| -> Vec<String> {
        text.lines()
            .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
            .collect()
    };
    let before = names(interfaces()?);
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    assert_eq!(names(interfaces()?), before);
    assert_eq!(
        names(host.run(["cat", "/proc/self/net/dev"])?.stdout),
        ["lo", "eth0"]
    );
    Ok(())
}

#[test]
fn accounts_homes_and_names_are_the_hosts_own() -> Result {
    let machine = fs::read_to_string("/etc/passwd")?;
    let lab = Lab::new()?;
    let (one, two) = (lab.host("one")?, lab.host("two")?);
    one.add_account("alice", 1001)?;
    two.add_account("alice", 2001)?;
    let identity = one.run_as(
        "alice",
        ["sh", "-c", "id -u; id -un; pwd; echo $HOME; hostname"],
    )?;
    assert_eq!(
        identity.stdout,
        "1001\nalice\n/home/alice\n/home/alice\none\n"
    );
    assert_eq!(two.run_as("alice", ["id", "-u"])?.stdout, "2001\n");
    one.run_as("alice", ["sh", "-c", "echo mine >~/note"])?;
    assert_eq!(one.read("/home/alice/note")?, "mine\n");
    assert!(two.read("/home/alice/note").is_err());
    assert_eq!(fs::read_to_string("/etc/passwd")?, machine);
    assert!(
        one.command(["id", "nobody-of-this-name"])
            .run()?
            .status
            .code()
            == Some(1)
    );
    Ok(())
}

#[test]
fn the_state_folders_of_usher_are_the_hosts_own() -> Result {
    let lab = Lab::new()?;
    let (one, two) = (lab.host("one")?, lab.host("two")?);
    for folder in [
        "/etc",
        "/home",
        "/root",
        "/run",
        "/var/lib",
        "/var/log",
        "/sys/fs/bpf",
    ] {
        let mark = format!("{folder}/mark-of-one");
        // A BPF file system takes folders only.
        one.run(["mkdir", &mark])?;
        assert!(one.path(&mark).exists(), "{mark}");
        assert!(!two.path(&mark).exists(), "{mark} shows in another host");
        assert!(!fs::exists(&mark)?, "{mark} shows on the machine");
    }
    one.write("/etc/usher/policy.d/a.policy", "# a\n")?;
    assert_eq!(
        one.run(["cat", "/etc/usher/policy.d/a.policy"])?.stdout,
        "# a\n"
    );
    Ok(())
}

#[test]
fn a_command_runs_in_its_hosts_cgroup() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    let group = host.run(["cat", "/proc/self/cgroup"])?.stdout;
    let version_2 = group
        .lines()
        .find(|line| line.starts_with("0::"))
        .unwrap_or_default();
    let folder = host
        .cgroup()
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    assert_eq!(folder, "one");
    assert!(
        version_2.contains("/usher-lab-") && version_2.contains("/one/command-"),
        "{group}"
    );
    assert!(
        host.path(host.cgroup()).exists(),
        "the path is the same inside"
    );
    Ok(())
}

#[test]
fn a_command_that_takes_too_long_is_killed_with_what_it_started() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    let command = host.command(["sh", "-c", "echo begun; sleep 1000 & sleep 1000"]);
    let error = command
        .limit(Duration::from_millis(300))
        .run()
        .expect_err("it takes 1000 s");
    match error {
        LabError::TimedOut { stdout, .. } => assert_eq!(stdout, "begun\n"),
        other => return Err(other.into()),
    }
    let sleeping = host
        .processes()?
        .into_iter()
        .filter(|process| process.name == "sleep")
        .count();
    assert_eq!(sleeping, 0);
    assert_eq!(host.command(["sleep", "0"]).run()?.status.code(), Some(0));
    Ok(())
}

#[test]
fn a_failed_command_says_what_it_said() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    let error = host
        .run(["sh", "-c", "echo out; echo wrong >&2; exit 3"])
        .expect_err("exit 3");
    let text = error.to_string();
    for part in ["host one", "exit status: 3", "out", "wrong"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    Ok(())
}

#[test]
fn a_started_command_is_spoken_to_and_gets_signals() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    host.add_account("alice", 1001)?;
    let script =
        "trap 'echo caught' USR1; while read -r line; do echo \"got $line\"; done; echo end";
    let mut shell = host.command(["bash", "-c", script]).user("alice").spawn()?;
    shell.write("one\n")?;
    assert_eq!(shell.read_past("got one", PATIENCE)?, "got one\n");
    let processes = host.processes()?;
    let process = processes
        .iter()
        .find(|process| process.command.contains("caught"));
    assert_eq!(
        process.map(|process| (process.uid, process.name.as_str())),
        Some((1001, "bash"))
    );
    shell.kill(Signal::USR1)?;
    shell.write("two\n")?;
    assert_eq!(shell.read_past("got two", PATIENCE)?, "caught\ngot two\n");
    shell.close_input();
    assert_eq!(shell.read_past("end", PATIENCE)?, "end\n");
    assert_eq!(
        shell.wait(PATIENCE)?.and_then(|status| status.code()),
        Some(0)
    );
    assert!(matches!(
        shell.kill(Signal::USR1),
        Err(LabError::NotRunning { .. })
    ));
    Ok(())
}

#[test]
fn orphans_are_reaped() -> Result {
    let lab = Lab::new()?;
    let host = lab.host("one")?;
    host.run(["sh", "-c", "(sleep 0.05 &) ; (sleep 0.05 &)"])?;
    let numbers = || -> std::io::Result<Vec<String>> {
        let entries = fs::read_dir(host.path("/proc"))?.flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        Ok(names
            .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
            .collect())
    };
    // The one that waits for the lab's end; nor a zombie beside it.
    eventually("only the first process remains", || Ok(numbers()? == ["1"]))
}

#[test]
fn names_that_are_unfit_or_taken_are_refused() -> Result {
    let lab = Lab::new()?;
    lab.host("one")?;
    for name in ["one", "", "One", "-a", "a/b", "a b", "1a"] {
        assert!(
            matches!(lab.host(name), Err(LabError::HostName { .. })),
            "{name:?}"
        );
    }
    lab.host("one-2")?;
    Ok(())
}
