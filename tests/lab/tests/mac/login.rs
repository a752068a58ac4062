//! Labels at login: real sshd, su, cron and login with pam_usher.so, and Usher's own workers.

use usher_lab::{Host, Role, Running, eventual, eventually};

use super::services::{give_key, told};
use super::{Outcome, host_with_modules, refused};

const FILE: &str = "/etc/usher/mac.login";
const MODULE: &str = "/run/lab/bin/deps/libpam_usher.so";
const GETPMAC: &str = "/run/lab/bin/getpmac";
const SYSLOG: &str = "/run/syslog";
/// The label of the daemons: users without a label of their own inherit it.
const DAEMONS: &str = "test/daemon";

/// What mac.login says of the users of the test: alice by name, bob by a group, carol nothing, dave what the
/// module refuses.
const USERS: [(&str, &str); 3] = [
    ("alice", "test/secret"),
    ("bob", "test/other"),
    ("carol", DAEMONS),
];
const LABELS: &str = "user alice test/secret\ngroup others test/other\nuser dave test/forbid\n";

/// Adds lines about the module to a service of PAM, as Debian has it.
fn add_module(host: &Host, service: &str, kinds: &[&str]) -> Outcome {
    let file = format!("/etc/pam.d/{service}");
    let mut text = host.read(&file)?;
    for kind in kinds {
        let line = format!("{kind} required {MODULE}\n");
        // Nothing may skip the line for auth.
        text = match *kind {
            "auth" => line + &text,
            _ => text + &line,
        };
    }
    Ok(host.write(file, text)?)
}

/// A daemon or command under the daemons' label.
fn labelled(host: &Host, command: &[&str]) -> Result<Running, Box<dyn std::error::Error>> {
    let words = ["/run/lab/bin/setpmac", DAEMONS].iter().chain(command);
    Ok(host.spawn(words)?)
}

/// The label of a daemon: of its first process.
fn label_of_daemon(host: &Host, name: &str) -> Result<String, Box<dyn std::error::Error>> {
    let found = host.processes()?.into_iter().find(|one| one.name == name);
    let pid = found.ok_or_else(|| format!("no {name}"))?.pid.to_string();
    Ok(host.run([GETPMAC, "-p", &pid])?.stdout.trim().to_owned())
}

fn as_login_program(host: &Host, command: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    let words = ["/run/lab/bin/setpmac", DAEMONS].iter().chain(command);
    let output = host.command(words).run()?;
    Ok(output.stdout.trim().to_owned())
}

/// What a file of a user's says, once it is there.
fn written(host: &Host, file: &str) -> Result<String, Box<dyn std::error::Error>> {
    eventual(&format!("{file} is written"), || {
        let text = host.read(file).unwrap_or_default();
        Ok(text.ends_with('\n').then(|| text.trim().to_owned()))
    })
}

fn su(host: &Host) -> Outcome {
    add_module(host, "su", &["session"])?;
    let label = |user| as_login_program(host, &["su", user, "-c", GETPMAC]);
    for (user, expected) in USERS {
        assert_eq!(label(user)?, expected, "{user}");
    }
    assert_eq!(label("dave")?, "");
    Ok(())
}

/// The user's shell, a login shell, writes its label.
fn login(host: &Host) -> Outcome {
    add_module(host, "login", &["session"])?;
    for user in ["alice", "bob", "carol", "dave"] {
        host.write(
            format!("/home/{user}/.profile"),
            format!("{GETPMAC} >/home/{user}/login; exit\n"),
        )?;
        let login = format!("login -f {user}");
        as_login_program(host, &["script", "-qec", &login, "/dev/null"])?;
    }
    for (user, expected) in USERS {
        let file = format!("/home/{user}/login");
        assert_eq!(written(host, &file)?, expected, "{user}");
    }
    assert!(!host.path("/home/dave/login").exists());
    Ok(())
}

/// Jobs that run when cron starts.
fn cron(host: &Host) -> Outcome {
    add_module(host, "cron", &["session"])?;
    host.run([
        "sh",
        "-c",
        "rm -rf /etc/cron.d/* /etc/crontab /etc/anacrontab",
    ])?;
    host.run(["mkdir", "-p", "/var/spool/cron/crontabs"])?;
    let users = ["dave", "alice", "bob", "carol"];
    let jobs = users.map(|user| format!("@reboot {user} {GETPMAC} >/home/{user}/cron\n"));
    host.write("/etc/cron.d/labels", jobs.concat())?;
    let mut cron = labelled(host, &["cron", "-f"])?;
    for (user, expected) in USERS {
        let file = format!("/home/{user}/cron");
        assert_eq!(written(host, &file)?, expected, "{user}");
    }
    assert_eq!(label_of_daemon(host, "cron")?, DAEMONS);
    eventually("cron is refused dave's job", || {
        let log = host.read(SYSLOG)?;
        Ok(log.contains("pam_usher(cron:session): no session"))
    })?;
    assert!(!host.path("/home/dave/cron").exists());
    Ok(cron.end()?)
}

fn sshd(host: &Host) -> Outcome {
    const PORT: &str = "2222";
    const HOST_KEY: &str = "/root/host_key";
    const KEY: &str = "/root/key";
    add_module(host, "sshd", &["auth", "session"])?;
    host.make_key(HOST_KEY)?;
    let key = host.make_key(KEY)?;
    host.run(["mkdir", "-p", "/run/sshd"])?;
    let users = ["alice", "carol", "dave"];
    for user in users.iter().chain(&["root"]) {
        let home = host.run(["sh", "-c", &format!("echo ~{user}")])?.stdout;
        let folder = format!("{}/.ssh", home.trim());
        host.write(format!("{folder}/authorized_keys"), &key)?;
        host.run(["chown", "-R", &format!("{user}:"), &folder])?;
    }
    let mut words = vec!["/usr/sbin/sshd", "-D", "-e", "-p", PORT, "-h", HOST_KEY];
    words.extend(["-o", "UsePAM=yes", "-o", "PermitRootLogin=yes"]);
    let mut sshd = labelled(host, &words)?;
    let login = |user: &str, command: &str| {
        let to = format!("{user}@127.0.0.1");
        let mut words = vec![
            "ssh",
            "-p",
            PORT,
            "-i",
            KEY,
            "-o",
            "StrictHostKeyChecking=no",
        ];
        words.extend(["-o", "ConnectionAttempts=60", &to, command]);
        let output = host.command(words).run()?;
        Ok::<_, Box<dyn std::error::Error>>((output.stdout, output.status.success()))
    };
    // The shell, the process that serves the user, and the monitor.
    let lineage =
        format!("{GETPMAC}; {GETPMAC} -p $PPID; {GETPMAC} -p $(ps -o ppid= -p $PPID | tr -d ' ')");
    for (user, expected) in [USERS[0], USERS[2]] {
        let expected = format!("{expected}\n{expected}\n{DAEMONS}\n");
        assert_eq!(login(user, &lineage)?, (expected, true), "{user}");
    }
    let is_refused = || {
        let (output, is_well) = login("dave", "echo it runs")?;
        Ok::<_, Box<dyn std::error::Error>>(!is_well && !output.contains("it runs"))
    };
    // The user authenticates by a key: sshd itself would go on after the refusal.
    assert!(is_refused()?);
    let line = "pam_usher(sshd:setcred): no session";
    eventually("the refusal is logged", || {
        Ok(host.read(SYSLOG)?.contains(line))
    })?;
    // The twin: another label.
    host.write(FILE, LABELS.replace("forbid", "other"))?;
    assert_eq!(login("dave", GETPMAC)?, ("test/other\n".to_owned(), true));
    host.write(FILE, LABELS)?;
    assert_eq!(label_of_daemon(host, "sshd")?, DAEMONS);
    // No process becomes the user where that is root: the one of the connection has the label.
    host.write(FILE, format!("{LABELS}user root test/root\n"))?;
    let lineage = format!("{GETPMAC}; {GETPMAC} -p $PPID");
    let expected = "test/root\ntest/root\n".to_owned();
    assert_eq!(login("root", &lineage)?, (expected, true));
    assert_eq!(label_of_daemon(host, "sshd")?, DAEMONS);
    // Only in the session's stack, the module gives the monitor the label: no session is without.
    let stack = host.read("/etc/pam.d/sshd")?;
    host.write(
        "/etc/pam.d/sshd",
        stack.replace(&format!("auth required {MODULE}\n"), ""),
    )?;
    let monitor = format!("{GETPMAC}; {GETPMAC} -p $(ps -o ppid= -p $PPID | tr -d ' ')");
    let expected = "test/secret\ntest/secret\n".to_owned();
    assert_eq!(login("alice", &monitor)?, (expected, true));
    assert!(is_refused()?);
    assert_eq!(label_of_daemon(host, "sshd")?, DAEMONS);
    host.write(FILE, LABELS)?;
    Ok(sshd.end()?)
}

/// A file that cannot be used refuses sessions, also of users whose lines are right.
fn faults(host: &Host) -> Outcome {
    let label = || as_login_program(host, &["su", "alice", "-c", GETPMAC]);
    host.write(FILE, format!("{LABELS}user erin\n"))?;
    assert_eq!(label()?, "");
    let told = refused(host, &["usher", "mac", "login"])?;
    assert!(told.contains("mac.login:4:1: `user` has too few"), "{told}");
    host.write(FILE, format!("{LABELS}default absent/1\n"))?;
    assert_eq!(as_login_program(host, &["su", "carol", "-c", GETPMAC])?, "");
    host.write(FILE, LABELS)?;
    host.run(["chmod", "666", FILE])?;
    assert_eq!(label()?, "");
    host.run(["chmod", "644", FILE])?;
    assert_eq!(label()?, "test/secret");
    for reason in [
        "the label test/forbid by line 3 of /etc/usher/mac.login",
        "mac.login:4:1: `user` has too few or too many words",
        "no module in force has such an element",
        "others than root can write /etc/usher/mac.login",
    ] {
        eventually(reason, || Ok(host.read(SYSLOG)?.contains(reason)))?;
    }
    let shown = host.run(["usher", "mac", "login", "alice", "bob", "carol"])?;
    assert!(
        shown.stdout.contains("test/other   2     group others"),
        "{shown:?}"
    );
    Ok(())
}

/// A service that prints its label: what the user's sessions have.
fn workers(host: &Host) -> Outcome {
    let policy = "users people { member alice, carol; }
         service label {
           program \"/run/lab/bin/getpmac\";
           listen 8143; users people; hosts server; style connection;
         }
         client people { users people; service label at server port 8143; }\n";
    host.write("/etc/usher/policy.d/services.policy", policy)?;
    host.run(["usher", "policy", "apply"])?;
    assert_eq!(told(host, "alice", "label")?, "test/secret\n");
    assert_eq!(told(host, "carol", "label")?, "-\n");
    host.write(FILE, LABELS.replace("secret", "forbid"))?;
    let connect = ["usher", "connect", "server:label"];
    let refused = host.command(connect).user("alice").run()?;
    assert_eq!(refused.stdout, "");
    let who = eventual("the refusal is known", || {
        let who = host.run(["usher", "--json", "who"])?.stdout;
        Ok(who.contains("mac.login").then_some(who))
    })?;
    assert!(who.contains("take the label that mac.login has"), "{who}");
    assert_eq!(told(host, "carol", "label")?, "-\n");
    host.write(FILE, LABELS)?;
    assert_eq!(label_of_daemon(host, "usherd")?, "-");
    eventually("alice is served again", || {
        Ok(told(host, "alice", "label")? == "test/secret\n")
    })
}

// Threat model: M57, M58, M60, M62
#[test]
fn sessions_have_the_label_of_their_user() -> Outcome {
    let Some((_lab, host)) = host_with_modules()? else {
        return Ok(());
    };
    host.add_account("carol", 2003)?;
    host.add_account("dave", 2004)?;
    host.run(["groupadd", "others"])?;
    host.run(["usermod", "-a", "-G", "others", "bob"])?;
    host.write(FILE, LABELS)?;
    for user in ["alice", "carol"] {
        give_key(&host, user)?;
    }
    let roles = [
        Role::Keeper,
        Role::Labeller,
        Role::Recorder,
        Role::Verifier,
        Role::Signer,
        Role::Courier,
    ];
    let daemons = roles.map(|role| host.start_daemon(role));
    let _daemons = daemons.into_iter().collect::<Result<Vec<_>, _>>()?;
    let log = format!("OPEN:{SYSLOG},creat,append");
    let mut syslog = host.spawn(["socat", "-u", "UNIX-RECV:/dev/log,mode=666", &log])?;

    // While no module labels processes, nothing of it counts.
    add_module(&host, "su", &["session"])?;
    host.write(FILE, "not a line\n")?;
    host.run(["su", "alice", "-c", "true"])?;
    let stack = host.read("/etc/pam.d/su")?;
    host.write(
        "/etc/pam.d/su",
        stack.replace(&format!("session required {MODULE}\n"), ""),
    )?;
    host.write(FILE, LABELS)?;

    host.run(["usher", "mac", "load", "test"])?;
    su(&host)?;
    login(&host)?;
    cron(&host)?;
    sshd(&host)?;
    faults(&host)?;
    workers(&host)?;
    assert!(!syslog.has_ended()?);
    Ok(syslog.end()?)
}
