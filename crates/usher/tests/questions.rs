//! The answers of `usher policy explain` and similar commands about copies of two hosts' files.
#![forbid(unsafe_code)]

use std::fs;
use std::path::Path;
use std::process::Command;

const HOSTS: &str = "host mailhost {\n  address 192.0.2.2;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t\";\n}\n\
     host laptop {\n  address 192.0.2.1;\n  \
     key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBFOSSDcMLHY83KZsUhkjz4XH1G8fT/qEwy0LI/7FFAu\";\n}\n";
const MAILHOST: &str = "users mail { member alice; guest olga until 2001-01-01T00:00Z; }
    service imap { program \"/bin/cat\"; listen 143; style user; users mail; hosts any; }";
const LAPTOP: &str = "users mail { member alice, olga; }
    client mail { users mail; service imap at mailhost port 143; }";

/// Copies of both hosts' files in `hosts`; the laptop calls the other host `post`.
fn copies() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let laptop = format!("{HOSTS}{LAPTOP}").replace("mailhost", "post");
    for (host, text) in [
        ("mailhost", format!("{HOSTS}{MAILHOST}")),
        ("laptop", laptop),
    ] {
        let policy = folder.path().join("hosts").join(host).join("policy.d");
        fs::create_dir_all(&policy).unwrap();
        fs::write(policy.join("mail.policy"), text).unwrap();
    }
    folder
}

/// The exit status of a question, its standard output, and its standard error.
fn ask(folder: &Path, question: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .arg("policy")
        .args(question)
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    (code, text(output.stdout), text(output.stderr))
}

/// Whether somebody may read mail, asked of the copies.
fn explain(from: &str) -> [&str; 5] {
    ["explain", from, "imap@mailhost", "--hosts", "hosts"]
}

#[test]
fn who_can_and_reach_take_the_names_that_explain_takes() {
    let folder = copies();
    for server in ["mailhost", "post"] {
        let service = format!("imap@{server}");
        let ask =
            |question: &[&str]| ask(folder.path(), &[question, &["--hosts", "hosts"]].concat());
        let (explained, ..) = ask(&["explain", "alice@laptop", &service]);
        let (code, who, _) = ask(&["who-can", &service]);
        assert_eq!((explained, code), (0, 0), "{who}");
        assert!(who.contains("from laptop: alice"), "{who}");
    }
    let (code, reached, _) = ask(
        folder.path(),
        &["reach", "alice@laptop", "--hosts", "hosts"],
    );
    assert!(code == 0 && reached.contains("imap@mailhost"), "{reached}");
}

#[test]
fn an_expired_guest_is_shown_with_the_line_and_the_time() {
    let folder = copies();
    let question = explain("olga@laptop");
    let (code, told, _) = ask(folder.path(), &question);
    assert_eq!(code, 1, "{told}");
    for words in [
        "no: olga was a guest of `service imap` of mailhost, and that is over since 2001-01-01T00:00Z",
        "hosts/mailhost/policy.d/mail.policy:9:34: users mail: guest olga until 2001-01-01T00:00Z",
        "help: write a later time for the guest olga on mailhost",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
}

#[test]
fn a_key_that_is_revoked_or_expired_is_shown_with_that() {
    let folder = copies();
    let mailhost = folder.path().join("hosts/mailhost");
    let public = |name: &str| {
        let made = Command::new("ssh-keygen")
            .current_dir(folder.path())
            .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f", name])
            .status();
        assert!(made.unwrap().success());
        fs::read_to_string(folder.path().join(format!("{name}.pub"))).unwrap()
    };
    let (revoked, expired) = (public("revoked"), public("expired"));
    fs::create_dir_all(mailhost.join("users/alice")).unwrap();
    let keys = format!("{revoked}expiry-time=\"20010101Z\" {expired}");
    fs::write(mailhost.join("users/alice/authorized_keys"), keys).unwrap();
    fs::write(mailhost.join("revoked_keys"), revoked).unwrap();
    let question = explain("alice@laptop");
    let (code, explained, _) = ask(folder.path(), &question);
    assert_eq!(code, 1, "{explained}");
    let said = explained
        .split("has no good public key of alice (SHA256:")
        .nth(1);
    let said = said.unwrap_or_else(|| panic!("{explained}"));
    assert!(said.contains(" is revoked, SHA256:"), "{explained}");
    assert!(said.contains(" has expired)"), "{explained}");
    let (_, json, _) = ask(folder.path(), &[&question[..], &["--json"]].concat());
    for part in ["\"fault\": \"revoked\"", "\"fault\": \"expired\""] {
        assert!(json.contains(part), "{part} in {json}");
    }
}

#[test]
fn a_mistake_in_a_copy_is_told_by_the_copys_path() {
    let folder = copies();
    let agree = || ask(folder.path(), &["agree", "--hosts", "hosts"]);
    let mailhost = folder.path().join("hosts/mailhost");
    fs::write(mailhost.join("revoked_keys"), "").unwrap();
    let (code, _, told) = agree();
    assert_eq!(code, 2, "{told}");
    assert!(
        told.contains("hosts/mailhost/revoked_keys: the list is empty; remove it"),
        "{told}"
    );
    assert!(!told.contains("/etc/usher"), "{told}");
    fs::write(mailhost.join("revoked_keys"), "# none").unwrap();
    let (code, told, _) = agree();
    // The laptop has another name for mailhost, and permits olga.
    assert!(
        code == 1 && told.contains("calls the host mailhost `post`"),
        "{told}"
    );
}

#[test]
fn the_wrong_directory_is_told_with_the_right_one() {
    let folder = copies();
    for (option, directory, advice) in [
        (
            "--hosts",
            "hosts/mailhost",
            "give the directory above it, which has a directory for each host",
        ),
        (
            "--host",
            "laptop=hosts/laptop/policy.d",
            "give the directory above it, which is the copy",
        ),
        ("--host", "laptop=hosts", "or all with --hosts hosts"),
        (
            "--hosts",
            ".",
            "./hosts is no copy of a host's /etc/usher, but contains such copies",
        ),
    ] {
        let (code, _, told) = ask(folder.path(), &["who-can", "imap", option, directory]);
        assert!(code == 2 && told.contains(advice), "{directory}: {told}");
    }
    let (code, told, _) = ask(folder.path(), &["agree", "--host", "laptop=hosts/laptop"]);
    assert_eq!(code, 0);
    assert!(
        told.starts_with("only the policy of laptop is known here"),
        "{told}"
    );
}

#[test]
fn an_unknown_name_is_reported_with_the_nearest_known_one() {
    let folder = copies();
    let ask = |question: &[&str]| ask(folder.path(), &[question, &["--hosts", "hosts"]].concat());
    let unknown = |what: &str| format!("warning: no policy here names the {what}\n");
    for (question, warnings) in [
        (
            &["who-can", "imapp"][..],
            vec!["service imapp; did you mean `imap`?"],
        ),
        (
            &["who-can", "nix@mailhots"],
            vec!["service nix", "host mailhots; did you mean `mailhost`?"],
        ),
        (&["reach", "zed@nohost"], vec!["user zed", "host nohost"]),
        (
            &["explain", "alcie@laptop", "imap@mailhost"],
            vec!["user alcie; did you mean `alice`?"],
        ),
        // The user is known, and may use nothing.
        (&["reach", "olga"], vec![]),
        (&["reach", "alice@mailhost"], vec![]),
        (&["explain", "olga@laptop", "imap@mailhost"], vec![]),
    ] {
        let (code, _, told) = ask(question);
        let expected: String = warnings.into_iter().map(unknown).collect();
        assert_eq!((code, told), (1, expected), "{question:?}");
    }
    let (code, _, told) = ask(&["explain", "alice@laptpo", "imap@mialhost"]);
    assert_eq!(code, 2, "{told}");
    for host in [
        "laptpo; did you mean `laptop`?",
        "mialhost; did you mean `mailhost`?",
    ] {
        assert!(told.contains(&unknown(&format!("host {host}"))), "{told}");
    }
}

#[test]
fn a_port_is_one_that_there_is() {
    let folder = copies();
    for (port, expected) in [("0", 2), ("99999", 2), ("1", 1), ("143", 0)] {
        let question = [
            "explain",
            "alice@laptop",
            "imap@mailhost",
            "--hosts",
            "hosts",
            "--port",
            port,
        ];
        let (code, _, told) = ask(folder.path(), &question);
        assert_eq!(code, expected, "{told}");
        assert_eq!(told.contains("1..=65535"), code == 2, "{told}");
    }
}

#[test]
fn what_is_served_otherwise_is_told_in_the_words_of_the_policy() {
    let (old, new) = (copies(), copies());
    let old = old.path().join("hosts");
    let told = |changes: &[(&str, &str, &str)]| {
        for (host, from, to) in changes {
            let path = new
                .path()
                .join("hosts")
                .join(host)
                .join("policy.d/mail.policy");
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{from}");
            fs::write(path, text.replace(from, to)).unwrap();
        }
        let (code, told, why) = ask(new.path(), &["diff", old.to_str().unwrap(), "hosts"]);
        assert_eq!(why, "");
        (code, told)
    };
    let (code, nothing) = told(&[]);
    assert_eq!(code, 0);
    assert!(nothing.starts_with("nothing changes: "), "{nothing}");
    let (code, text) = told(&[
        (
            "mailhost",
            "style user;",
            "style connection; session 1h; reauthenticate 90s; keys mail;",
        ),
        ("mailhost", "\"/bin/cat\"", "\"/bin/cat\" \"-u\""),
        (
            "laptop",
            "port 143;",
            "port 143; programs \"/bin/mutt\"; protocol imap;",
        ),
    ]);
    let expected = "imap@mailhost from laptop\n\
         ! changes: programs none -> \"/bin/mutt\"; protocol none -> imap; program \"/bin/cat\" -> \
         \"/bin/cat\" \"-u\"; style user -> connection; keys none -> mail; session 8h -> 1h; \
         reauthenticate none -> 90s\n";
    assert_eq!((code, text.as_str()), (1, expected));
    let (code, text) = told(&[(
        "mailhost",
        "keys mail;",
        "keys mail; connect laptop port 25;",
    )]);
    assert!(
        code == 1 && text.contains("; connect anywhere -> laptop port 25; "),
        "{text}"
    );
    // The same words, with another meaning.
    for host in ["mailhost", "laptop"] {
        let file = Path::new(host).join("policy.d/mail.policy");
        fs::copy(new.path().join("hosts").join(&file), old.join(file)).unwrap();
    }
    let (code, text) = told(&["mailhost", "laptop"].map(|host| (host, "192.0.2.1;", "192.0.2.9;")));
    let expected = "imap@mailhost from laptop\n\
         ! changes: connect: the same hosts at other addresses\n";
    assert_eq!((code, text.as_str()), (1, expected));
}

#[test]
fn a_test_mentions_certificates_only_where_one_would_help() {
    let folder = copies();
    let test = || ask(folder.path(), &["test", "--hosts", "hosts"]);
    let (code, _, told) = test();
    let advice =
        "no `expect` statements to test; add some, such as `expect refuse user bob service imap;`";
    assert!(code == 2 && told.contains(advice), "{told}");
    let path = folder.path().join("hosts/mailhost/policy.d/mail.policy");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("member alice;", "member alice; principal ops;");
    let expected = "expect permit user dave service imap;";
    let ask = |hosts: &str| {
        let text = text.replace("hosts any;", hosts);
        fs::write(&path, format!("{text}{expected}")).unwrap();
        // The laptop's policy would have to name the user.
        ask(
            folder.path(),
            &["test", "--host", "mailhost=hosts/mailhost"],
        )
    };
    let certificate = " (only with a certificate that names ops)";
    let (code, told, _) = ask("hosts laptop;");
    assert!(code == 5 && told.contains(certificate), "{told}");
    let (code, told, _) = ask("hosts mailhost;");
    let refused = "dave@laptop is refused at imap@mailhost\n";
    assert!(told.contains(refused), "{code}: {told}");
}

#[test]
fn json_tells_why_an_expectation_fails_and_where() {
    let folder = copies();
    let path = folder.path().join("hosts/mailhost/policy.d/mail.policy");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        format!("{text}\nexpect permit user olga service imap at mailhost;"),
    )
    .unwrap();
    let question = ["test", "--json", "--hosts", "hosts"];
    let (code, told, _) = ask(folder.path(), &question);
    assert_eq!(code, 1, "{told}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    let failed = &told["expectations"][0];
    assert_eq!(failed["expectation"]["origin"]["line"], 11);
    let from_laptop = failed["examples"].as_array().unwrap().iter();
    let mut from_laptop = from_laptop.filter(|decision| decision["question"]["client"] == "laptop");
    let objection = &from_laptop.next().unwrap()["objections"][0];
    let reason = objection["text"].as_str().unwrap();
    assert!(
        reason.starts_with("olga was a guest of `service imap`"),
        "{reason}"
    );
    let line = &objection["lines"][0];
    assert_eq!(line["place"]["file"], "hosts/mailhost/policy.d/mail.policy");
    assert_eq!(line["place"]["line"], 9);
}

#[test]
fn a_name_that_no_policy_has_fails_a_test_and_passes_a_check() {
    let folder = copies();
    let path = folder.path().join("hosts/mailhost/policy.d/mail.policy");
    let text = fs::read_to_string(&path).unwrap();
    let run = |expected: &str| {
        fs::write(&path, format!("{text}\n{expected}\n")).unwrap();
        let checked = path.display().to_string();
        let (checks, _, warned) = ask(folder.path(), &["check", &checked]);
        assert_eq!(checks, 0, "{warned}");
        let (code, told, _) = ask(folder.path(), &["test", "--hosts", "hosts"]);
        (code, told, warned)
    };
    // A user who has left; the service that was removed; a slip.
    for (expected, reason) in [
        (
            "expect refuse user bob service imap;",
            "no `users` block has the user `bob`",
        ),
        (
            "expect refuse user alice service notes;",
            "no `service` block is called `notes`, and no `client` block names such a service",
        ),
        (
            "expect refuse user alice at labtop service imap;",
            "no `host` block is called `labtop`; did you mean `laptop`?",
        ),
    ] {
        let (code, told, warned) = run(expected);
        assert_eq!(code, 1, "{told}");
        assert!(told.contains("fails") && told.contains(reason), "{told}");
        assert!(warned.contains(reason), "{warned}");
    }
    // The guest's time is over, and she is known all the same.
    let (code, told, warned) = run("expect refuse user olga at laptop service imap;");
    assert_eq!(code, 0, "{told}");
    assert!(!warned.contains("expectation"), "{warned}");
}

const IKE: [(&str, &str); 2] = [
    (
        "address 192.0.2.2;",
        "ike-key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIK0wmN/Cr3JXqmLW7u+g9pTh+wyqDHpSQEIQczXkVx9i\";",
    ),
    (
        "address 192.0.2.1;",
        "ike-key \"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJfJ3eGmZ2r0Yl7r1lY5Y2n1xJY8u0v9hX0m3xU5Jb7k\";",
    ),
];

/// Copies of both hosts' files, with IKE keys and under one name, after these changes.
fn protected(changes: &[(&str, &str, &str)]) -> tempfile::TempDir {
    let folder = copies();
    for host in ["laptop", "mailhost"] {
        let path = folder
            .path()
            .join("hosts")
            .join(host)
            .join("policy.d/mail.policy");
        let mut text = fs::read_to_string(&path)
            .unwrap()
            .replace("post", "mailhost");
        for (address, key) in IKE {
            text = text.replace(address, &format!("{address} {key}"));
        }
        for (_, from, to) in changes.iter().filter(|(at, ..)| *at == host) {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        fs::write(path, text).unwrap();
    }
    folder
}

/// The output of `diff` for two states.
fn diff(old: &[(&str, &str, &str)], new: &[(&str, &str, &str)]) -> String {
    let (old, new) = (protected(old), protected(new));
    let old = old.path().join("hosts");
    let (code, told, why) = ask(new.path(), &["diff", old.to_str().unwrap(), "hosts"]);
    assert_eq!((code, why.as_str()), (1, ""), "{told}");
    told
}

#[test]
fn protection_of_both_sides_is_told_apart() {
    let both = [
        (
            "mailhost",
            "listen 143;",
            "listen 143; protection authentication;",
        ),
        ("laptop", "port 143;", "port 143; protection encryption;"),
    ];
    let expected = "imap@mailhost from laptop\n\
         ! changes: client's protection none -> encryption; service's protection none -> authentication\n";
    assert_eq!(diff(&[], &both), expected);
}

#[test]
fn a_block_inside_another_is_shown_whole_or_with_its_changed_lines() {
    let block = |udp: &str, tcp: &str| {
        format!(
            "application ftp {{ network mailhost protected Tcp; network 0.0.0.0/0 trusted; {udp} \
             protection Tcp {{ localport=any remoteport=21 encryption {tcp}; localport=any \
             remoteport=any authentication optional; }} }}\nclient mail {{"
        )
    };
    let udp = "network 192.0.2.7 protected Udp; protection Udp { localport=any remoteport=any encryption \
               mandatory; }";
    let (before, after) = (block("", "optional"), block(udp, "mandatory"));
    let (before, after) = (
        [("laptop", "client mail {", before.as_str())],
        [("laptop", "client mail {", after.as_str())],
    );
    let new = "+ network 192.0.2.7 protected Udp;\n\
               \x20 protection Tcp {\n\
               -   localport=any remoteport=21 encryption optional;\n\
               +   localport=any remoteport=21 encryption mandatory;\n\
               \x20 }\n\
               + protection Udp {\n\
               +   localport=any remoteport=any encryption mandatory;\n\
               + }\n";
    assert_eq!(
        diff(&before, &after),
        format!("traffic of ftp on laptop\n{new}")
    );
    let told = diff(&after, &[]);
    let gone = "- is left alone: no `application` block names it any more\n\
                - network mailhost protected Tcp;\n";
    assert!(
        told.starts_with(&format!("traffic of ftp on laptop\n{gone}")),
        "{told}"
    );
    assert!(
        told.ends_with("-   localport=any remoteport=any encryption mandatory;\n- }\n"),
        "{told}"
    );
}

#[test]
fn a_host_that_only_one_of_two_states_has_is_a_warning() {
    let (old, new) = (protected(&[]), protected(&[]));
    fs::remove_dir_all(new.path().join("hosts/laptop")).unwrap();
    let (old, new) = (old.path().join("hosts"), new.path().join("hosts"));
    for (from, to, called, other) in [(&old, &new, "OLD", "NEW"), (&new, &old, "NEW", "OLD")] {
        let question = ["diff", from.to_str().unwrap(), to.to_str().unwrap()];
        let (_, _, why) = ask(&old, &question);
        let expected = format!(
            "warning: laptop is only in {called}: in {other} its policy is not known, and the other hosts' \
             policies alone decide about it\n"
        );
        assert_eq!(why, expected);
    }
}

#[test]
fn the_proxy_is_named_among_listed_programs_only_if_it_is_listed() {
    for (programs, told) in [
        (
            "\"/bin/mutt\"",
            "by these programs only: /bin/mutt, not the proxy at 127.0.2.1:143 (`usher` is not listed)\n",
        ),
        (
            "\"/bin/mutt\", \"/usr/bin/usher\"",
            "by these programs only: /bin/mutt, /usr/bin/usher, the proxy at 127.0.2.1:143, which answers an IMAP LOGIN itself\n",
        ),
    ] {
        let listed = format!("port 143; protocol imap; programs {programs};");
        let folder = protected(&[
            ("laptop", "port 143;", &listed),
            (
                "laptop",
                "address 192.0.2.2;",
                "address 192.0.2.2; loopback 127.0.2.1;",
            ),
        ]);
        let (code, explained, _) = ask(folder.path(), &explain("alice@laptop"));
        assert!(code == 0 && explained.contains(told), "{explained}");
    }
}
