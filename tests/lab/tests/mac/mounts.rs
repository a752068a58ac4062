//! Rules of `bsdextended` about file systems: they follow the path, and not a number that another file system may get.

use usher_lab::{Host, PATIENCE, Role, eventually};

use super::{GUARDED, OPEN, OWNER, Outcome, answer, host_with_modules, kill, reads, write_rule};

const DISK: &str = "/srv/disk";
const OTHER: &str = "/srv/other";

fn mount(host: &Host, at: &str) -> Result<String, Box<dyn std::error::Error>> {
    host.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", at])?;
    host.write(format!("{at}/file"), "text\n")?;
    host.run(["chmod", "644", &format!("{at}/file")])?;
    Ok(host.run(["stat", "-c", "%d", at])?.stdout)
}

/// Waits until the labeller says of the file system whether its rule waits.
fn wait(host: &Host, waits: bool) -> Outcome {
    eventually("the labeller has seen the mounts", || {
        let status = answer(host, &["status"])?.to_string();
        Ok(status.contains("filesys /srv/disk: ") == waits)
    })
}

// Threat model: M124
#[test]
fn rules_follow_the_path_of_a_file_system() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    host.run(["mkdir", "-p", DISK, OTHER])?;
    let [on_disk, on_other] = [DISK, OTHER].map(|at| format!("{at}/file"));
    let number = mount(&host, DISK)?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let of_disk = format!("rule subject uid alice object filesys \"{DISK}\" mode n;");
    let of_owner = format!("rule subject uid bob object uid {OWNER} mode n;");
    write_rule(&host, &format!("{of_disk}\n{of_owner}"))?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "load", "bsdextended"])?;
    assert!(!reads(&host, "alice", &on_disk)?);
    assert!(reads(&host, "bob", &on_disk)?);

    // It is unmounted where the labeller is, and a container has it still.
    let holder = ["unshare", "-m", "--propagation", "private", "sh", "-c"];
    let mut holder = host.spawn(holder.into_iter().chain(["echo process $$; exec cat"]))?;
    let told = holder.read_past("process", PATIENCE)?;
    let holds = told.trim().replace("process ", "");
    host.run(["umount", DISK])?;
    eventually("the labeller has seen that it is elsewhere", || {
        let status = answer(&host, &["status"])?.to_string();
        Ok(status.contains("it is still in use elsewhere"))
    })?;
    let is_read = || -> Result<bool, Box<dyn std::error::Error>> {
        let command = ["nsenter", "-m", "-t", &holds, "setpriv", "--reuid", "2001"];
        let rest = ["--regid", "2001", "--clear-groups", "cat", &on_disk];
        let output = host.command(command.iter().chain(&rest)).run()?;
        let is_refused = output.stderr.contains("Permission denied");
        assert_eq!(output.status.success(), !is_refused, "{output:?}");
        Ok(output.status.success())
    };
    assert!(!is_read()?, "the rule is about it still");
    assert!(reads(&host, "alice", OPEN)?);
    host.run(["usher", "policy", "apply"])?;
    assert!(!is_read()?);
    kill(&mut labeller)?;
    labeller.start()?;
    assert!(!is_read()?, "the next labeller knows it");

    // It ends, and another file system gets the number.
    holder.close_input();
    assert!(holder.wait(PATIENCE)?.is_some());
    eventually("the rule waits", || {
        let status = answer(&host, &["status"])?.to_string();
        Ok(status.contains("the rule waits"))
    })?;
    assert_eq!(
        mount(&host, OTHER)?,
        number,
        "the kernel uses numbers again"
    );
    assert!(reads(&host, "alice", &on_other)?, "no rule is about it");
    assert_ne!(mount(&host, DISK)?, number);
    wait(&host, false)?;
    assert!(
        !reads(&host, "alice", &on_disk)?,
        "it has another number now"
    );
    assert!(reads(&host, "alice", &on_other)?);

    // After a boot without the file system the other rules are in force.
    host.run(["umount", DISK])?;
    labeller.end()?;
    host.run(["usherd", "release"])?;
    labeller.start()?;
    assert!(!reads(&host, "bob", GUARDED)?, "the module is loaded");
    wait(&host, true)?;
    // A policy comes into force that does not name more file systems.
    write_rule(&host, &of_disk)?;
    host.run(["usher", "policy", "apply"])?;
    assert!(reads(&host, "bob", GUARDED)?);
    mount(&host, DISK)?;
    wait(&host, false)?;
    assert!(!reads(&host, "alice", &on_disk)?);
    kill(&mut labeller)?;
    labeller.start()?;
    assert!(!reads(&host, "alice", &on_disk)?);
    Ok(())
}
