//! Error messages, remedies and warnings, word for word.
//!
//! Each golden/NAME.policy is parsed and the result compared with golden/NAME.expected:
//! errors with their remedies and the text at fault, or the policy as text and its warnings. After
//! a change that is meant, `USHER_BLESS=1 cargo test -p usher-policy --test golden` writes the
//! expected files anew; read the difference before committing it.

use std::fs;
use std::path::Path;

use usher_policy::{Groups, Source, Unresolved, parse_with_groups};

/// The groups of the system, as the policies here have them.
fn groups() -> Groups {
    let accounts = |names: &[&str]| Ok(names.iter().map(|&name| name.to_owned()).collect());
    let admins = [
        "root",
        "alice",
        "erin",
        "usher-signer",
        "Karl Heinz",
        "bell\u{7}",
    ];
    let groups = [
        ("admins", accounts(&admins)),
        ("staff", accounts(&["alice", "erin"])),
        ("staff@corp.example", accounts(&["bob", "dave"])),
        ("nobodys", accounts(&[])),
        (
            "away",
            Err(Unresolved("the name service does not answer".to_owned())),
        ),
    ];
    let named = |(name, members): (&str, _)| (name.parse().expect("a group's name"), members);
    groups.map(named).into()
}

fn outcome(source: &Source) -> String {
    match parse_with_groups(std::slice::from_ref(source), &groups()) {
        Ok(policy) => {
            let mut lines = vec![policy.to_text()];
            lines.extend(
                policy
                    .warnings()
                    .iter()
                    .map(|warning| format!("warning: {warning}\n  remedy: {}\n", warning.remedy)),
            );
            lines.concat()
        }
        Err(errors) => errors
            .iter()
            .map(|error| {
                let span = error.span.offset..error.span.offset + error.span.length;
                let fault = source.text[span].escape_debug();
                format!("{error}\n  at: [{fault}]\n  remedy: {}\n", error.remedy())
            })
            .collect(),
    }
}

#[test]
fn every_policy_comes_to_what_is_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("USHER_BLESS").is_some();
    let mut compared = 0;
    let mut differing = Vec::new();
    for entry in fs::read_dir(&folder).expect("the golden folder") {
        let path = entry.expect("a readable folder").path();
        if path
            .extension()
            .is_none_or(|extension| extension != "policy")
        {
            continue;
        }
        let name = path
            .file_name()
            .expect("a file")
            .to_string_lossy()
            .into_owned();
        let text = fs::read_to_string(&path).expect("a policy in UTF-8");
        let found = outcome(&Source {
            name: name.clone(),
            text,
        });
        let expected_path = path.with_extension("expected");
        if bless {
            fs::write(&expected_path, &found).expect("a writable golden folder");
        }
        let expected = fs::read_to_string(&expected_path).unwrap_or_default();
        if found != expected {
            differing.push(format!(
                "--- {name}\nexpected:\n{expected}\nfound:\n{found}"
            ));
        }
        compared += 1;
    }
    assert!(compared >= 20, "only {compared} golden policies were found");
    assert!(differing.is_empty(), "{}", differing.join("\n"));
}
