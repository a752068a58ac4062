//! The demonstration of the attacked mail service, as far as it needs no virtual machine: its
//! documents show the table that it demands. `tests/vm/suites.list` has the demonstration itself.
#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::process::{Command, Output};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

fn demo(arguments: &[&str]) -> Result<Output> {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_usher-demo-attack"));
    Ok(demo.args(arguments).output()?)
}

fn document() -> Result<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Ok(std::fs::read_to_string(root.join("docs/demo-attack.md"))?)
}

/// The rows of the first table below a heading.
fn table(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| !line.starts_with("| |"));
    lines.take_while(|line| line.starts_with('|')).collect()
}

#[test]
fn the_document_shows_the_table_that_the_demonstration_demands() -> Result {
    let demanded = demo(&["--expected"])?;
    assert!(demanded.status.success());
    let demanded = String::from_utf8(demanded.stdout)?;
    let document = document()?;
    let rows = table(&demanded);
    assert!(rows.len() > 20, "{demanded}");
    assert_eq!(table(&document), rows);
    // The document says in the same words what remains.
    let remains = demanded.trim_end().lines().last().ok_or("no last line")?;
    assert!(remains.len() > 40, "{remains}");
    assert!(document.contains(remains), "{remains}");
    Ok(())
}

#[test]
fn a_mistake_on_the_command_line_is_told() -> Result {
    let told = demo(&["--only", "everything"])?;
    assert_eq!(told.status.code(), Some(2));
    let said = String::from_utf8(told.stderr)?;
    assert!(said.contains("'everything'"), "{said}");
    assert!(said.contains("the configurations are: plain, "), "{said}");
    Ok(())
}

/// In a virtual machine it runs; that is for tests/vm/demo-attack.
#[test]
fn a_machine_that_is_no_virtual_one_is_told_where_to_see_it() -> Result {
    let told = Command::new(env!("CARGO_BIN_EXE_usher-demo-attack"))
        .env_remove("USHER_VM")
        .output()?;
    let said = String::from_utf8(told.stderr)?;
    assert_eq!(told.status.code(), Some(3), "{said}");
    assert!(said.contains("make demo-attack KERNEL=6.18"), "{said}");
    assert_eq!(String::from_utf8(told.stdout)?, "", "no table");
    Ok(())
}

/// A part that needs no virtual machine: two columns, each cell by an attack that was carried out.
#[test]
fn the_columns_without_modules_are_as_the_document_says() -> Result {
    let shown = demo(&["--json", "--only", "plain", "--only", "netAuth"])?;
    let said = String::from_utf8(shown.stderr)?;
    assert!(shown.status.success(), "{said}");
    let shown: serde_json::Value = serde_json::from_slice(&shown.stdout)?;
    assert_eq!(shown["differences"], serde_json::json!([]), "{said}");
    let row = |name: &str| {
        let mut rows = shown["rows"].as_array().into_iter().flatten();
        rows.find(|row| row["row"] == name)
            .map(|row| row["cells"].clone())
    };
    let cells = row("read alice's mail").ok_or("no row")?;
    assert_eq!(cells["plain"], "reached");
    assert_eq!(cells["netAuth"], "refused");
    assert_eq!(cells["all"], serde_json::Value::Null, "not tried");
    Ok(())
}
