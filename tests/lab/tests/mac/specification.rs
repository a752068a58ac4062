//! The specification of the policy: labels that everyday tools lose come back, unasked or by `usher mac relabel`.

use usher_lab::{Host, Role, eventually};

use super::{Outcome, POLICY, answer, hanging, host_with_modules, kill, refused};

const FILE: &str = "/etc/usher/files.mac";
const SPECIFICATION: &str = "\
/srv/labelled(/.*)?               te/plain,mls/low
/srv/labelled/sbin/daemon   --    te/daemon_exec,mls/low
/srv/labelled/secret(/.*)?        te/plain,mls/high
/srv/labelled/low                 te/plain,mls/high
";

fn label(host: &Host, path: &str) -> Result<String, Box<dyn std::error::Error>> {
    let labels = host.command(["getfmac", path]).run()?;
    Ok(labels.stdout.trim().replace(&format!("{path}: "), ""))
}

/// The hook of packaging/dpkg, with the programs of the lab.
fn hook() -> Result<String, Box<dyn std::error::Error>> {
    let lines = include_str!("../../../../packaging/dpkg/usher").lines();
    let line = lines
        .last()
        .and_then(|line| line.strip_prefix("post-invoke=\""));
    let command = line.and_then(|line| line.strip_suffix('"'));
    let command = command.ok_or("no command")?;
    Ok(command.replace("/usr/local/bin/usher", "$(command -v usher)"))
}

/// Waits for the label of a file.
pub fn gets(host: &Host, path: &str, wanted: &str) -> Outcome {
    eventually(&format!("{path} has {wanted}"), || {
        Ok(label(host, path)? == wanted)
    })
}

// Threat model: M101, M102, M103
#[test]
fn labels_that_tools_lose_come_back_by_the_specification() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    let [daemon, secret] =
        ["sbin/daemon", "secret/file"].map(|name| format!("/srv/labelled/{name}"));
    let folder = "mkdir -p /srv/labelled && mount -t tmpfs -o mode=755 none /srv/labelled && cd /srv/labelled && \
                  mkdir sbin secret && cp /bin/true sbin/daemon && echo text > secret/file";
    host.run(["sh", "-c", folder])?;
    let te = "mac te { domain daemon; type plain, other, daemon_exec; transition unconfined daemon_exec daemon; }";
    let policy = |specification: &str| {
        format!("mac framework {{ multilabel \"/srv/labelled\"; {specification} }}\n{te}\n")
    };
    let mut labeller = host.start_daemon(Role::Labeller)?;
    host.write(POLICY, policy(&format!("specification \"{FILE}\";")))?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(told.contains("there is no such file"), "{told}");
    host.write(FILE, SPECIFICATION.replace("mls/high", "mls/65536"))?;
    let told = refused(&host, &["usher", "policy", "apply"])?;
    assert!(
        told.contains("files.mac:3:35: `65536` is not a grade"),
        "{told}"
    );
    host.write(FILE, SPECIFICATION)?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "relabel"])?;
    for module in ["te", "mls"] {
        host.run(["usher", "mac", "load", module])?;
    }
    assert_eq!(label(&host, &daemon)?, "mls/low,te/daemon_exec");
    assert_eq!(label(&host, &secret)?, "mls/high,te/plain");

    // A package manager renames a new file over the program, and sed over the secret.
    let upgrade = "cd /srv/labelled/sbin && cp /bin/false daemon.new && mv daemon.new daemon";
    host.run(["sh", "-c", upgrade])?;
    gets(&host, &daemon, "mls/low,te/daemon_exec")?;
    host.run(["sed", "-i", "s/text/other/", &secret])?;
    gets(&host, &secret, "mls/high,te/plain")?;
    assert_eq!(host.read(&secret)?, "other\n");
    // A file that a process of a lower level makes keeps its level: the process was not exempt.
    let low = "/srv/labelled/low";
    host.run([
        "setpmac",
        "mls/low",
        "sh",
        "-c",
        &format!("echo text > {low}"),
    ])?;
    gets(&host, low, "mls/low,te/plain")?;
    // Neither does the hook of the package manager give it another one. The labeller looks at all files: a lost type
    // comes back, and when it does for the second time, the first look was over.
    let hook = hook()?;
    for _ in 0..2 {
        host.run(["setfmac", "te/plain", &daemon])?;
        let said = host.run(["sh", "-c", &hook])?;
        assert_eq!(said.stdout + &said.stderr, "");
        gets(&host, &daemon, "mls/low,te/daemon_exec")?;
    }
    assert_eq!(label(&host, low)?, "mls/low,te/plain");

    // Without a labeller nothing comes back, and the next one does what it may; the rest is said.
    kill(&mut labeller)?;
    let said = host.run(["usher", "mac", "relabel", "-n"])?.stderr;
    assert!(said.contains("counts as it is now"), "{said}");
    let said = host.run(["usher", "mac", "relabel", "-nq"])?.stderr;
    assert!(!said.contains("counts as it is now"), "{said}");
    let said = host.run(["sh", "-c", &hook])?.stderr;
    assert!(said.contains("it does when it starts"), "{said}");
    host.run(["sh", "-c", upgrade])?;
    host.run(["setfmac", "te/other", &daemon])?;
    labeller.start()?;
    eventually("the entry point is missed", || {
        let status = answer(&host, &["status"])?.to_string();
        Ok(status.contains("daemon has the type other"))
    })?;
    let doctor = host.command(["usher", "doctor"]).run()?.stdout;
    assert!(
        doctor.contains("/sbin/daemon has the type other"),
        "{doctor}"
    );
    let relabelled = host.run(["usher", "mac", "relabel", "-v"])?.stdout;
    assert!(
        relabelled.contains("/srv/labelled/low: mls/high,te/plain by"),
        "{relabelled}"
    );
    assert_eq!(label(&host, &daemon)?, "mls/low,te/daemon_exec");
    assert_eq!(label(&host, low)?, "mls/high,te/plain");
    eventually("the entry point is back", || {
        let status = answer(&host, &["status"])?.to_string();
        Ok(!status.contains("daemon has the type"))
    })?;

    // What is edited is not in force, and does not count unless it is asked for.
    let edited = SPECIFICATION.replace("te/daemon_exec", "te/plain");
    host.write(FILE, edited)?;
    let told = refused(&host, &["usher", "mac", "relabel"])?;
    assert!(
        told.contains("/etc/usher/files.mac: not the specification in force"),
        "{told}"
    );
    assert_eq!(label(&host, &daemon)?, "mls/low,te/daemon_exec");
    let said = host.run(["usher", "mac", "relabel", "--edited", "-nv"])?;
    let wanted = format!("{daemon}: mls/low,te/plain by");
    assert!(said.stdout.contains(&wanted), "{said:?}");
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "relabel"])?;
    assert_eq!(label(&host, &daemon)?, "mls/low,te/plain");
    host.write(FILE, SPECIFICATION)?;
    host.run(["usher", "policy", "apply"])?;
    host.run(["usher", "mac", "relabel"])?;
    assert_eq!(label(&host, &daemon)?, "mls/low,te/daemon_exec");

    // The twin: without a specification what tools lose stays lost.
    host.write(POLICY, policy(""))?;
    host.run(["usher", "policy", "apply"])?;
    let told = refused(&host, &["usher", "mac", "relabel"])?;
    assert!(told.contains("names no specification"), "{told}");
    host.run(["usher", "mac", "relabel", "--if-specified"])?;
    host.run(["sh", "-c", upgrade])?;
    gets(&host, &daemon, "mls/low,te/plain")?;
    hanging::file_systems_that_hang_delay_no_others(&host, te)
}
