//! Modules of mandatory access control, by the labeller and the command line.
#![forbid(unsafe_code)]

mod hanging;
mod login;
mod mounts;
mod ports;
mod services;
mod silence;
mod specification;
mod types;
mod ugidfw;

use std::sync::OnceLock;

use serde_json::{Value, json};
use usher_lab::{Daemon, Host, Lab, PATIENCE, Role, Signal};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const POLICY: &str = "/etc/usher/policy.d/mac.policy";
const APPLIED: &str = "/var/lib/usher/applied.json";
/// A file of uid 4242, and one of root; both are open to everyone.
const GUARDED: &str = "/srv/guarded";
const OPEN: &str = "/srv/open";
/// The owner of the guarded file: no account has it.
const OWNER: &str = "4242";

/// A host with alice, bob, two files and an empty policy in force.
fn host(lab: &Lab) -> Result<Host, Box<dyn std::error::Error>> {
    let host = lab.host("server")?;
    host.add_account("alice", 2001)?;
    host.add_account("bob", 2002)?;
    host.run(["mkdir", "-p", "/srv"])?;
    for file in [GUARDED, OPEN] {
        host.write(file, "text\n")?;
        host.run(["chmod", "644", file])?;
    }
    host.run(["chown", OWNER, GUARDED])?;
    host.init_alone()?;
    Ok(host)
}

fn write_rule(host: &Host, rule: &str) -> Outcome {
    Ok(host.write(POLICY, format!("mac bsdextended {{\n  {rule}\n}}\n"))?)
}

fn reads(host: &Host, user: &str, file: &str) -> Result<bool, Box<dyn std::error::Error>> {
    let output = host.command(["cat", file]).user(user).run()?;
    let is_refused = output.stderr.contains("Permission denied");
    assert_eq!(output.status.success(), !is_refused, "{output:?}");
    Ok(output.status.success())
}

fn answer(host: &Host, question: &[&str]) -> Result<Value, Box<dyn std::error::Error>> {
    let command = ["usher", "--json", "mac"].iter().chain(question);
    Ok(serde_json::from_str(&host.run(command)?.stdout)?)
}

/// Kills the labeller, so that none runs.
fn kill(labeller: &mut Daemon) -> Outcome {
    labeller.kill(Signal::KILL)?;
    labeller.wait(PATIENCE)?.ok_or("it lives on")?;
    Ok(())
}

/// What bsdextended has refused last, in words.
fn last_refusal(host: &Host) -> Result<String, Box<dyn std::error::Error>> {
    let told = answer(host, &["refusals", "bsdextended"])?;
    let last = told["refusals"][0]["last"].as_str();
    Ok(last.ok_or_else(|| format!("{told}"))?.to_owned())
}

/// The reason that a command is refused.
fn refused(host: &Host, command: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let output = host.command(command).run()?;
    assert!(!output.status.success(), "{output:?}");
    Ok(output.stderr)
}

/// Whether this kernel runs modules, which is tried once; attaches nothing.
fn runs_modules(host: &Host) -> Result<bool, Box<dyn std::error::Error>> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    if let Some(works) = FOUND.get() {
        return Ok(*works);
    }
    let found = host.run(["usherd", "probe", "MAC framework"])?.stdout;
    let found: Value = serde_json::from_str(&found)?;
    assert_eq!(found[0]["name"], "MAC framework");
    Ok(*FOUND.get_or_init(|| found[0]["works"] == true))
}

/// A host on a kernel that runs modules; none, with the reason printed, where the test is skipped.
fn host_with_modules() -> Result<Option<(Lab, Host)>, Box<dyn std::error::Error>> {
    if std::env::var_os("USHER_VM").is_none() {
        println!("skipped: modules decide for the whole system, so they run in a virtual machine");
        return Ok(None);
    }
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if !runs_modules(&host)? {
        println!("skipped: this kernel runs no modules");
        return Ok(None);
    }
    Ok(Some((lab, host)))
}

#[test]
fn a_kernel_without_modules_refuses_them_in_plain_words() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if runs_modules(&host)? {
        println!("skipped: this kernel runs modules");
        return Ok(());
    }
    let labeller = host.start_daemon(Role::Labeller)?;
    let reason = "mandatory access control does not run on this kernel";
    let told = refused(&host, &["usher", "mac", "load", "bsdextended"])?;
    assert!(told.contains(reason), "{told}");
    assert!(answer(&host, &["status"])?["unsupported"].is_string());
    let listed = answer(&host, &["list"])?;
    assert_eq!(listed["modules"], json!([]));
    assert_eq!(
        listed["available"],
        json!([
            "none",
            "test",
            "bsdextended",
            "ubns",
            "biba",
            "mls",
            "lomac",
            "portacl",
            "seeotheruids",
            "partition",
            "ifoff",
            "te"
        ])
    );
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    assert!(!host.path("/var/lib/usher/labeller/modules.json").exists());

    let stored = host.read(APPLIED)?;
    write_rule(&host, "rule subject uid alice mode n;")?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(
        told.contains(reason) && told.contains("nothing has changed"),
        "{told}"
    );
    assert_eq!(host.read(APPLIED)?, stored);
    // The twin: without the block the policy comes into force, at the labeller as well.
    host.write(POLICY, "")?;
    let applied = host.run(["usher", "policy", "apply"])?.stdout;
    assert!(applied.contains("labeller"), "{applied}");

    let doctor = host.command(["usher", "--json", "doctor"]).run()?.stdout;
    let doctor: Value = serde_json::from_str(&doctor)?;
    let findings = doctor.as_array().map_or(&[][..], Vec::as_slice);
    let finding = |name: &str| findings.iter().find(|finding| finding["name"] == name);
    let framework = finding("MAC framework").expect("a finding");
    assert_eq!(
        (&framework["works"], &framework["required"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(
        finding("daemon labeller").expect("a finding")["works"],
        true
    );
    drop(labeller);
    Ok(())
}

#[test]
fn a_policy_with_a_module_needs_a_running_labeller() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    let stored = host.read(APPLIED)?;
    write_rule(&host, "rule subject uid alice mode n;")?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(told.contains("labeller"), "{told}");
    assert_eq!(host.read(APPLIED)?, stored);
    // A dry run needs none, has the rules, and foresees that.
    let dry = host
        .command(["usher", "policy", "apply", "--dry-run"])
        .run()?;
    let said = "module bsdextended on server\n+ rule subject uid alice mode n\n";
    assert!(dry.stdout.contains(said), "{dry:?}");
    let foreseen = "an apply would be refused: the labeller does not run on this host";
    assert!(dry.stdout.contains(foreseen), "{dry:?}");
    Ok(())
}

#[test]
fn modules_decide_by_the_policy_whoever_dies() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let readers = || -> Result<[bool; 3], Box<dyn std::error::Error>> {
        Ok([
            reads(&host, "alice", GUARDED)?,
            reads(&host, "bob", GUARDED)?,
            reads(&host, "alice", OPEN)?,
        ])
    };
    let for_alice = format!("rule subject uid alice object uid {OWNER} mode n;");
    write_rule(&host, &for_alice)?;
    let applied = host.run(["usher", "policy", "apply"])?;
    assert!(
        applied.stderr.contains("usher mac load bsdextended"),
        "{}",
        applied.stderr
    );
    assert_eq!(readers()?, [true; 3], "not loaded");
    assert_eq!(answer(&host, &["list"])?["waiting"], json!(["bsdextended"]));

    host.run(["usher", "mac", "load", "bsdextended"])?;
    assert_eq!(readers()?, [false, true, true]);
    let listed = answer(&host, &["list", "bsdextended"])?;
    assert_eq!(listed["settings"], json!([for_alice.trim_end_matches(';')]));
    assert!(
        listed["refusals"]["file_open"].as_u64() > Some(0)
            || listed["refusals"]["inode_permission"].as_u64() > Some(0),
        "{listed}"
    );
    let last = last_refusal(&host)?;
    assert!(
        last.contains("refused cat (pid ") && last.contains("guarded (inode "),
        "{last}"
    );
    assert!(labeller.log()?.contains(&last), "{last}");
    assert_eq!(answer(&host, &["refusals", "none"])?["refusals"], json!([]));
    assert_eq!(answer(&host, &["status"])?["lost_events"], 0);
    assert_eq!(host.read("/run/usher/labeller/modules")?, "bsdextended\n");
    let told = refused(&host, &["usher", "mac", "load", "bsdextended"])?;
    assert!(told.contains("loaded already"), "{told}");
    let told = refused(&host, &["usher", "mac", "load", "bsdextend"])?;
    assert!(told.contains("there is no module bsdextend"), "{told}");

    // A second module, at hooks of its own; what only it has is detached with it.
    let hooks = answer(&host, &["status"])?["hooks"].clone();
    host.run(["usher", "mac", "load", "portacl"])?;
    let status = answer(&host, &["status"])?;
    let names: Vec<_> = status["modules"]
        .as_array()
        .unwrap()
        .iter()
        .map(|module| &module["name"])
        .collect();
    assert_eq!(names, ["bsdextended", "portacl"]);
    assert_ne!(status["hooks"], hooks);
    assert_eq!(readers()?, [false, true, true]);
    host.run(["usher", "mac", "unload", "portacl"])?;
    assert_eq!(answer(&host, &["status"])?["hooks"], hooks);

    // Its death changes nothing, and the next one adopts.
    kill(&mut labeller)?;
    assert_eq!(readers()?, [false, true, true], "without a labeller");
    labeller.start()?;
    // It tells what was refused meanwhile.
    let last = last_refusal(&host)?;
    assert!(last.contains("guarded (inode "), "{last}");
    assert_eq!(readers()?, [false, true, true], "with the next one");
    let listed = answer(&host, &["list", "bsdextended"])?;
    assert_eq!(listed["settings"], json!([for_alice.trim_end_matches(';')]));

    // The policy changes at once, and with a mistake not at all.
    write_rule(
        &host,
        &format!("rule subject uid bob object uid {OWNER} mode n;"),
    )?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(readers()?, [true, false, true]);
    let stored = host.read(APPLIED)?;
    for (rule, reason) in [
        (
            format!("{for_alice}\n  rule subject uid no-such-user mode n;"),
            "no user no-such-user",
        ),
        (format!("{for_alice}\n  rule mode q;"), "mac.policy:3:13"),
        (
            format!("{for_alice}\n  rule object filesys \"/opt\" mode n;"),
            "filesys /opt: no file system is mounted there",
        ),
    ] {
        write_rule(&host, &rule)?;
        let told = refused(&host, &["usher", "policy", "apply"])?;
        assert!(told.contains(reason), "{told}");
        assert_eq!(readers()?, [true, false, true], "{reason}");
        assert_eq!(host.read(APPLIED)?, stored);
    }

    // Gone from the kernel, and back when a labeller starts: as after a reboot.
    labeller.end()?;
    let released = host.run(["usherd", "release"])?.stdout;
    assert!(released.contains("the modules bsdextended"), "{released}");
    assert_eq!(readers()?, [true; 3], "released");
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    labeller.start()?;
    assert_eq!(readers()?, [true, false, true], "loaded again");
    host.run(["usher", "mac", "unload", "bsdextended"])?;
    assert_eq!(readers()?, [true; 3], "unloaded");
    assert_eq!(answer(&host, &["status"])?["hooks"], json!([]));
    assert!(!host.path("/run/usher/labeller/modules").exists());
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    labeller.restart()?;
    assert_eq!(readers()?, [true; 3], "it stays unloaded");
    Ok(())
}

// Threat model: M126
#[test]
fn a_multilabel_file_system_must_be_mounted() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let _labeller = host.start_daemon(Role::Labeller)?;
    let stored = host.read(APPLIED)?;
    host.run(["mkdir", "-p", "/srv/labelled"])?;
    host.write(POLICY, "mac framework { multilabel \"/srv/labelled\"; }\n")?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(told.contains("no file system is mounted there"), "{told}");
    assert_eq!(host.read(APPLIED)?, stored);
    host.run(["mount", "-t", "tmpfs", "none", "/srv/labelled"])?;
    let applied = host.run(["usher", "policy", "apply"])?;
    // The framework is no module that waits to be loaded.
    assert!(!applied.stderr.contains("usher mac load"), "{applied:?}");
    assert_eq!(answer(&host, &["status"])?["waiting"], json!([]));
    Ok(())
}

// Threat model: M12
#[test]
fn no_rule_locks_the_administrator_out() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    // A process of root without capabilities, such as most daemons of root.
    let as_daemon = || -> Result<bool, Box<dyn std::error::Error>> {
        let read = [
            "setpriv",
            "--bounding-set=-all",
            "--inh-caps=-all",
            "cat",
            OPEN,
        ];
        let output = host.command(read).run()?;
        let is_refused = output.stderr.contains("Permission denied");
        assert_eq!(output.status.success(), !is_refused, "{output:?}");
        Ok(output.status.success())
    };
    let mut labeller = host.start_daemon(Role::Labeller)?;
    host.run(["usher", "mac", "load", "bsdextended"])?;
    assert!(as_daemon()?, "no rule");
    let warning = "also about daemons that run as root";
    // A module with checks at all hooks takes long to load: once is enough.
    for (rule, warns, module) in [
        ("rule mode n;", true, "none"),
        ("rule subject uid root mode n;", false, "portacl"),
    ] {
        write_rule(&host, rule)?;
        let checked = host.run(["usher", "policy", "check"])?.stderr;
        assert_eq!(checked.contains(warning), warns, "{checked}");
        host.run(["usher", "policy", "apply"])?;
        assert!(!as_daemon()?, "{rule}");
        assert_eq!(reads(&host, "alice", OPEN)?, !warns, "{rule}");
        // The labeller runs as root with few capabilities. It does all of its work, and starts.
        host.run(["usher", "mac", "load", module])?;
        host.run(["usher", "mac", "unload", module])?;
        labeller.crash()?;
        assert!(!as_daemon()?, "{rule}");
    }
    // Both ways out: the rule, and the module.
    write_rule(&host, "rule subject not uid 0:999 object uid 1 mode n;")?;
    host.run(["usher", "policy", "apply"])?;
    assert!(as_daemon()?, "another policy");
    write_rule(&host, "rule mode n;")?;
    host.run(["usher", "policy", "apply"])?;
    assert!(!as_daemon()?);
    host.run(["usher", "mac", "unload", "bsdextended"])?;
    assert!(as_daemon()?, "unloaded");
    assert!(reads(&host, "alice", OPEN)?);
    Ok(())
}

// Threat model: M13
#[test]
fn root_does_not_touch_what_the_labeller_has_in_force() -> Outcome {
    const PINS: &str = "/sys/fs/bpf/usher_labeller";
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let mut keeper = host.start_daemon(Role::Keeper)?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let rule = format!("rule subject uid alice object uid {OWNER} mode n;");
    write_rule(&host, &rule)?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "load", "bsdextended"])?;
    let in_force = format!("{PINS}/enabled");
    let attacks = || -> Outcome {
        for command in [
            &["ls", PINS][..],
            &["rm", in_force.as_str()],
            &["rm", "-r", PINS],
            &["mv", PINS, "/sys/fs/bpf/gone"],
            &["chmod", "777", PINS],
            &["mkdir", "/sys/fs/bpf/usher_labeller/own"],
            &["bpftool", "map", "show", "pinned", in_force.as_str()],
        ] {
            let output = host.command(command).run()?;
            let said = format!("{}{}", output.stdout, output.stderr);
            assert!(
                !output.status.success() && said.contains("not permitted"),
                "{command:?}: {said}"
            );
        }
        assert!(!reads(&host, "alice", GUARDED)?);
        assert!(reads(&host, "bob", GUARDED)?);
        Ok(())
    };
    attacks()?;
    assert_eq!(answer(&host, &["status"])?["is_guarded"], true);
    kill(&mut labeller)?;
    attacks()?;
    labeller.start()?;
    attacks()?;
    // The twins: pins of root's own, and the labeller's for the labeller.
    let own = "/sys/fs/bpf/own";
    let made = [
        "bpftool", "map", "create", own, "type", "array", "key", "4", "value", "4", "entries", "1",
        "name", "own",
    ];
    host.run(made)?;
    host.run(["bpftool", "map", "show", "pinned", own])?;
    host.run(["rm", own])?;
    host.run(["usher", "mac", "unload", "bsdextended"])?;
    assert!(reads(&host, "alice", GUARDED)?);
    assert!(!host.path(PINS).exists());
    labeller.stop()?;
    keeper.stop()?;
    Ok(())
}
