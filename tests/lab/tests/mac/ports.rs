//! The modules `portacl` and `partition`: from the policy, or a command, to what users may do.

use serde_json::json;
use usher_lab::{Host, Role};

use super::{Outcome, POLICY, answer, host_with_modules, refused};

const START: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";

/// The number of the error with which a user's bind(2) fails; 0: it succeeds.
fn error_of_bind(host: &Host, user: &str, port: u16) -> Result<i32, Box<dyn std::error::Error>> {
    let script = format!(
        "import socket, sys
try: socket.socket().bind(('127.0.0.1', {port}))
except OSError as error: sys.exit(error.errno)"
    );
    let bind = host.command(["/usr/bin/python3", "-I", "-S", "-c", &script]);
    let status = bind.user(user).run()?.status;
    Ok(status.code().ok_or("killed")?)
}

#[test]
fn ports_follow_the_policy_and_partitions_a_command() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let _labeller = host.start_daemon(Role::Labeller)?;
    let policy = |user: &str| format!("mac portacl {{\n  permit user {user} tcp 80;\n}}\n");
    host.write(POLICY, policy("alice"))?;
    let applied = host.command(["usher", "policy", "apply"]).run()?.stderr;
    for warning in [
        "`mac portacl` refuses nothing until the module is loaded",
        "`permit user alice tcp 80`: the kernel still keeps ports below 1024",
    ] {
        assert!(applied.contains(warning), "{applied}");
    }
    host.run(["usher", "mac", "load", "portacl"])?;
    assert_eq!(error_of_bind(&host, "alice", 80)?, 13, "the kernel's");
    host.run(["sh", "-c", &format!("echo 0 >{START}")])?;
    assert_eq!(error_of_bind(&host, "alice", 80)?, 0);
    assert_eq!(error_of_bind(&host, "alice", 81)?, 1);
    assert_eq!(error_of_bind(&host, "bob", 80)?, 1);
    let listed = answer(&host, &["list", "portacl"])?;
    assert_eq!(listed["settings"], json!(["permit user alice tcp 80"]));
    assert_eq!(listed["refusals"], json!({ "socket_bind": 2 }));

    // Another policy, whose change a trial shows; an unknown name changes nothing.
    host.write(POLICY, policy("bob"))?;
    let trial = host.command(["usher", "policy", "apply", "--dry-run"]);
    let trial = trial.run()?.stdout;
    for line in ["permit user alice tcp 80", "permit user bob tcp 80"] {
        assert!(trial.contains(line), "{trial}");
    }
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(error_of_bind(&host, "alice", 80)?, 1);
    assert_eq!(error_of_bind(&host, "bob", 80)?, 0);
    host.write(POLICY, policy("no-such"))?;
    let trial = host
        .command(["usher", "policy", "apply", "--dry-run"])
        .run()?;
    assert_eq!(trial.status.code(), Some(2), "{trial:?}");
    assert!(
        trial.stdout.contains("this host has no user no-such"),
        "{trial:?}"
    );
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(told.contains("this host has no user no-such"), "{told}");
    assert_eq!(error_of_bind(&host, "bob", 80)?, 0);

    // A shell in a partition reaches itself, and not the first process, which is in none.
    host.run(["usher", "mac", "load", "partition"])?;
    host.run(["usher", "mac", "unload", "portacl"])?;
    assert_eq!(error_of_bind(&host, "alice", 80)?, 0);
    let [own, first] = ["$$", "1"].map(|process| format!("kill -0 {process}; exit $?"));
    let within = |script| ["setpmac", "partition/3", "sh", "-c", script];
    host.run(within(own.as_str()))?;
    let told = refused(&host, &within(&first))?;
    assert!(told.contains("not permitted"), "{told}");
    host.run(["sh", "-c", &first])?;
    Ok(())
}
