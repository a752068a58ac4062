//! Modules from files are loaded again when the labeller starts.

use serde_json::json;
use usher_lab::{Lab, Role};

use super::*;

// Threat model: M15, M16
#[test]
fn a_module_from_a_file_is_loaded_again_and_says_if_it_changed() -> Outcome {
    let lab = Lab::new()?;
    let host = host(&lab)?;
    if !may_load(&host)? {
        return Ok(());
    }
    commands(&host, &root(), "make install-module-headers")?;
    let mut labeller = host.start_daemon(Role::Labeller)?;
    let refusing = |mode: &str| {
        format!(
            "MAC_POLICY(modes);\nMAC_CHECK(bprm_check_security)\n\
             {{ return request->file.mode == {mode} ? -EACCES : 0; }}\n"
        )
    };
    for (program, mode) in [("/srv/one", "0751"), ("/srv/two", "0715")] {
        host.write_program(program, "#!/bin/true\n")?;
        host.run(["chmod", mode, program])?;
    }
    let both = || {
        Ok::<_, Box<dyn std::error::Error>>([
            executes(&host, "/srv/one")?,
            executes(&host, "/srv/two")?,
        ])
    };
    let read = |name: &str, what: &str| {
        Ok::<_, Box<dyn std::error::Error>>(answer(&host, &["list", name])?[what].clone())
    };
    let changed = || {
        Ok::<_, Box<dyn std::error::Error>>(
            answer(&host, &["list", "modes"])?["has_changed"].clone(),
        )
    };
    install(&host, "modes", &refusing("0100751"))?;
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!(both()?, [false, true]);
    let told = refused(&host, "modes")?;
    assert!(told.contains("loaded already"), "{told}");
    assert_eq!(changed()?, false);
    let file = format!("{MODULES}/modes.bpf.o");
    assert_eq!(answer(&host, &["list", "modes"])?["file"], json!(file));

    // Another labeller adopts it. A new file has no effect yet.
    labeller.crash()?;
    assert_eq!((both()?, changed()?), ([false, true], json!(false)));
    install(&host, "modes", &refusing("0100715"))?;
    assert_eq!((both()?, changed()?), ([false, true], json!(true)));

    // As after a reboot: the file as it is now, and it says so.
    labeller.end()?;
    host.run(["usherd", "release"])?;
    assert_eq!(both()?, [true, true]);
    labeller.start()?;
    assert_eq!((both()?, changed()?), ([true, false], json!(true)));
    host.run(["usher", "mac", "unload", "modes"])?;
    assert_eq!(both()?, [true, true]);
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!((both()?, changed()?), ([true, false], json!(false)));

    // Without its file it is not loaded again, and that is told.
    labeller.end()?;
    host.run(["usherd", "release"])?;
    host.run(["mv", &file, "/run/lab/aside"])?;
    labeller.start()?;
    assert_eq!(both()?, [true, true]);
    let status = answer(&host, &["status"])?;
    let told = status["troubles"][0].as_str().unwrap_or_default();
    assert!(told.contains("there is no module modes"), "{status}");
    host.run(["mv", "/run/lab/aside", &file])?;
    // The labeller itself tries again every five seconds.
    let loaded = host.command(["usher", "mac", "load", "modes"]).run()?;
    let by_itself = loaded.stderr.contains("modes is loaded already");
    assert!(loaded.status.success() || by_itself, "{loaded:?}");
    assert_eq!(both()?, [true, false]);

    // A file of the name of a built-in module, from a time when there was no such module.
    host.run(["usher", "mac", "unload", "modes"])?;
    labeller.end()?;
    let renamed = refusing("0100751").replace("(modes)", "(bsdextended)");
    install(&host, "bsdextended", &renamed)?;
    host.write(LIST, r#"[{"name":"bsdextended","digest":""}]"#)?;
    labeller.start()?;
    assert_eq!(both()?, [false, true]);
    host.run(["usher", "policy", "apply"])?;
    labeller.crash()?;
    assert_eq!(
        (both()?, read("bsdextended", "has_changed")?),
        ([false, true], json!(true))
    );
    host.run(["usher", "mac", "unload", "bsdextended"])?;
    assert!(refused(&host, "bsdextended")?.contains("there are two modules"));
    host.run(["rm", &format!("{MODULES}/bsdextended.bpf.o")])?;

    // Three times the labeller has ended while it loaded a module: it does so once more if it is told.
    labeller.end()?;
    host.write(
        LIST,
        r#"[{"name":"modes","digest":""},{"name":"none","digest":null}]"#,
    )?;
    host.write(TRIALS, r#"{"modes":3}"#)?;
    labeller.start()?;
    assert_eq!(both()?, [true, true]);
    let status = answer(&host, &["status"])?;
    let told = status["troubles"][0].as_str().unwrap_or_default();
    assert!(told.contains("the labeller has ended 3 times"), "{status}");
    assert_eq!(
        status["modules"][0]["name"], "none",
        "the modules after it are loaded"
    );
    host.run(["usher", "mac", "load", "modes"])?;
    assert_eq!(both()?, [true, false]);
    assert_eq!(host.read(TRIALS)?, "{}");
    host.run(["usher", "mac", "unload", "none"])?;

    // The verifier refuses a module that never ends; what is in force stays so, alone.
    let hooks = answer(&host, &["status"])?["hooks"].clone();
    let endless = "MAC_POLICY(endless);\nMAC_CHECK(task_kill)\n\
                   { volatile __u32 at = 1; while (at) at = request->signal | 1; return 0; }\n\
                   MAC_CHECK(file_open) { return 0; }\n";
    install(&host, "endless", endless)?;
    let told = refused(&host, "endless")?;
    assert!(
        told.contains("the kernel refuses the module endless"),
        "{told}"
    );
    let status = answer(&host, &["status"])?;
    assert_eq!(status["hooks"], hooks);
    assert_eq!(
        status["modules"].as_array().map(Vec::len),
        Some(1),
        "{status}"
    );
    assert_eq!(both()?, [true, false]);
    host.run(["usher", "mac", "unload", "modes"])?;
    assert!(!host.path("/sys/fs/bpf/usher_labeller").exists());
    Ok(())
}
