//! How mistakes of policies are shown.
#![forbid(unsafe_code)]

use std::process::{Command, Output};

/// The output of `usher policy check` for a text.
fn check(text: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("site.policy"), text).unwrap();
    Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["policy", "check", "site.policy"])
        .current_dir(folder.path())
        .output()
        .unwrap()
}

/// The mistakes of a text, without the first line, which is the place.
fn told(text: &str) -> (String, String) {
    let output = check(text);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let (place, rest) = told.split_once('\n').unwrap();
    (place.to_owned(), rest.to_owned())
}

#[test]
fn a_mistake_is_shown_at_its_line_and_column() {
    let (place, picture) = told(
        "# one\n# two\nmac bsdextended { rule object filesys \"/é\" mode n; } usrs u { }\n# four\n# five\n",
    );
    assert_eq!(place, "site.policy:3:54:");
    for line in [
        "[site.policy:3:54]",
        "2 │ # two",
        "3 │ mac bsdextended { rule object filesys \"/é\" mode n; } usrs u { }",
        "4 │ # four",
    ] {
        assert!(picture.contains(line), "{line}: {picture}");
    }
    assert!(
        !picture.contains("one") && !picture.contains("five"),
        "{picture}"
    );
    let mut lines = picture.lines();
    let at = |line: &str, part: &str| line[..line.find(part).unwrap()].chars().count();
    let written = lines.find(|line| line.contains("│ mac")).unwrap();
    let underlined = lines.next().unwrap();
    assert_eq!(at(written, "usrs"), at(underlined, "─"), "{picture}");
}

#[test]
fn a_mistake_in_a_long_line_is_shown_with_its_surroundings() {
    let members = "member alice; ".repeat(6000);
    let (place, picture) = told(&format!(
        "users u {{ {members}}} users u {{ membr bob; {members}}}\n"
    ));
    assert!(place.starts_with("site.policy:1:"), "{place}");
    assert!(picture.contains("membr bob;"), "{picture:.2000}");
    let longest = picture
        .lines()
        .map(|line| line.chars().count())
        .max()
        .unwrap();
    assert!(longest < 400, "{longest}");
}

#[test]
fn nothing_that_a_terminal_obeys_or_hides_is_shown_as_it_is() {
    let (_, picture) = told("# \u{1b}[31mred\u{7} \u{202e}\nusers u { membr\u{1b}]0;t a; }\r\n");
    let plain = |c: char| c == '\n' || !c.is_control() && c != '\u{202e}';
    assert!(picture.chars().all(plain), "{picture:?}");
    assert!(picture.contains('\u{241b}'), "{picture}");
}

#[test]
fn an_unreadable_file_hides_no_mistakes_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &[u8]| std::fs::write(folder.path().join(name), text).unwrap();
    write("latin.policy", b"users u { member ren\xe9; }");
    write(
        "site.policy",
        b"include \"hosts\";\n\
        # The other files may have these names.\n\
        service s { program \"/bin/cat\"; listen 1; users v; hosts h; style user; connect g port 1; }\n\
        expect permit user bob service t at h;\n\
        users u { membr bob; }\n\
        users u { }\n",
    );
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["--json", "policy", "check", "latin.policy", "site.policy"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    let told = told["policy_errors"].as_array().unwrap().iter();
    let told: Vec<String> = told
        .map(|error| {
            let text = |name: &str| error[name].as_str().unwrap();
            format!("{}:{}: {}", text("file"), error["line"], text("reason"))
        })
        .collect();
    let expected = [
        "latin.policy:1: the byte 0xe9 ",
        "site.policy:1: hosts cannot be included: ",
        "site.policy:5: ",
        "site.policy:6: the `users` block `u` is already defined ",
    ];
    assert_eq!(told.len(), expected.len(), "{told:?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{told}");
    }
}

#[test]
fn warnings_have_the_places_of_what_they_are_about() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write(
        "hosts",
        "host mailhost {\n  address 192.0.2.2;\n  loopback 127.0.1.1;\n  key \"ssh-ed25519 \
         AAAAC3NzaC1lZDI1NTE5AAAAIDN+lhThOY09sVkymKufxRzTC3vJMRefe9T40lK8/E1t\";\n}\n",
    );
    write(
        "site.policy",
        "include \"hosts\";\n\
         users mail { member alice;\n  guest olga until 2001-01-01T00:00Z; }\n\
         users none { }\n\
         service imap { program \"/bin/cat\"; listen 143; style user;\n  \
         users none; hosts any; }\n",
    );
    let output = Command::new(env!("CARGO_BIN_EXE_usher"))
        .args(["policy", "check", "site.policy"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    let expected = [
        "site.policy:2:1: `users mail` is named by no service and no client; name it in a \
         `service` or `client` block, or remove it",
        "site.policy:4:1: `users none` has no member; add a `member`, or remove the block",
        "site.policy:6:3: `service imap` admits no user; add a `member` to one of its `users` \
         blocks",
        "hosts:3:3: `host mailhost` has a `loopback` address, but no client block names a service \
         of it; name a service of the host in a `client` block, or remove `loopback`",
        "site.policy:3:9: `users mail`: the time of the guest olga was over at 2001-01-01T00:00Z; \
         remove the guest, or write a later time",
    ];
    let expected = expected.map(|warning| format!("warning: {warning}\n"));
    assert_eq!(told, expected.concat());
}

#[test]
fn a_port_that_the_module_leaves_alone_has_one_warning() {
    let text = "mac portacl { port_high 70; permit user www tcp 80; permit user www tcp 70; }\n";
    let output = check(text);
    let told = String::from_utf8(output.stderr).unwrap();
    let about = |permit: &str| told.lines().filter(|line| line.contains(permit)).count();
    assert_eq!(about("`permit user www tcp 80`"), 1, "{told}");
    assert!(
        told.contains("`permit user www tcp 80` permits nothing more: `portacl` keeps this port from no process"),
        "{told}"
    );
}
