//! `make lab`: shells in hosts of a lab, which go with it.
#![forbid(unsafe_code)]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The playground, once it has explained itself, and the programs that open shells: on mailhost, on laptop, as
/// alice, bob and carol.
fn playground() -> Result<(Child, Vec<String>)> {
    let mut playground = Command::new(env!("CARGO_BIN_EXE_usher-playground"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let output = playground.stdout.take().ok_or("no output")?;
    let mut shells = Vec::new();
    for line in BufReader::new(output).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        shells.extend(
            words
                .find(|word| word.starts_with("/proc/"))
                .map(str::to_owned),
        );
        if line.starts_with("Press Enter") {
            return Ok((playground, shells));
        }
    }
    Err(format!("it ended before: {}", playground.wait()?).into())
}

fn run(shell: &str, command: &[&str], input: &str) -> Result<Output> {
    let mut running = Command::new(shell)
        .args(command)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stdin = running.stdin.take().ok_or("no input")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    Ok(running.wait_with_output()?)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn shells_are_opened_in_its_hosts_and_end_with_it() -> Result {
    let (mut playground, shells) = playground()?;
    let [server, client, alice, _, carol] = &shells[..] else {
        return Err(format!("{shells:?}").into());
    };
    // Without a command, a shell.
    assert_eq!(
        text(&run(server, &[], "hostname; id -un\n")?),
        "mailhost\nroot\n"
    );
    assert_eq!(
        text(&run(client, &[], "hostname; id -un\n")?),
        "laptop\nroot\n"
    );
    assert_eq!(
        text(&run(alice, &[], "pwd; id -un\n")?),
        "/home/alice\nalice\n"
    );

    let connect = ["usher", "connect", "mailhost:imap"];
    let served = run(alice, &connect, "x LOGOUT\r\n")?;
    assert!(text(&served).contains("Logged in as alice"), "{served:?}");
    let refused = run(carol, &connect, "x LOGOUT\r\n")?;
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && why.contains("refused"),
        "{refused:?}"
    );
    let who = run(server, &["usher", "--json", "who"], "")?;
    assert!(text(&who).contains("\"alice\""), "{who:?}");

    // A shell that is open ends with the lab.
    let mut open = Command::new(alice).args(["sleep", "1d"]).spawn()?;
    assert!(open.try_wait()?.is_none());
    playground
        .stdin
        .take()
        .ok_or("no input")?
        .write_all(b"\n")?;
    assert!(playground.wait()?.success());
    assert!(!open.wait()?.success());
    assert!(!Path::new(server).exists());
    Ok(())
}
