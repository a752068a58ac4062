//! `usher host`: host blocks of the policy folder.

use std::fmt::Write;
use std::path::Path;

use usher_local::applied::PolicyFile;
use usher_local::files::write_atomically;
use usher_local::paths;
use usher_proto::host_key::HostPublicKey;

use super::configuration;
use crate::HostArguments;
use crate::failure::{At, Failure};
use crate::output::{Output, table};

/// Writes `host-NAME.policy`.
///
/// # Errors
/// When the policy with this block would have errors, or the block exists.
pub fn add(output: &Output, host: &HostArguments) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let key = HostPublicKey::from_openssh(&host.key).map_err(|error| {
        Failure::PublicKey(format!(
            "--key: {error}; give the line that `usher init` printed on {}",
            host.name
        ))
    })?;
    let path = Path::new(paths::POLICY_DIRECTORY).join(format!("host-{}.policy", host.name));
    if path.exists() {
        return Err(Failure::HostExists(path));
    }
    let text = block(host, &key);
    let mut whole = configuration::collect()?;
    whole.sources.push(PolicyFile {
        name: path.display().to_string(),
        text: text.clone(),
    });
    configuration::check(&whole)?;
    write_atomically(&path, text.as_bytes(), 0o644).at(&path)?;
    output.print(&serde_json::json!({ "file": path }), || {
        format!(
            "wrote {}; put it in force with `usher policy apply`",
            path.display()
        )
    });
    Ok(())
}

fn block(host: &HostArguments, key: &HostPublicKey) -> String {
    let list = |items: Vec<String>| items.join(", ");
    let mut text = format!("host {} {{\n", host.name);
    let addresses = list(host.address.iter().map(ToString::to_string).collect());
    // Writing into a String does not fail.
    let _ = writeln!(text, "  address {addresses};");
    let _ = writeln!(text, "  key \"{}\";", key.to_openssh());
    let _ = writeln!(text, "  control {};", host.control);
    if !host.loopback.is_empty() {
        let loopback = list(host.loopback.iter().map(ToString::to_string).collect());
        let _ = writeln!(text, "  loopback {loopback};");
    }
    text.push_str("}\n");
    text
}

/// Prints the hosts of the policy folder.
///
/// # Errors
/// When the policy has errors.
pub fn list(output: &Output) -> Result<(), Failure> {
    let policy = configuration::check(&configuration::collect()?)?.policy;
    let hosts: Vec<_> = policy.hosts.values().collect();
    output.print(&hosts, || {
        let rows: Vec<Vec<String>> = hosts
            .iter()
            .map(|host| {
                let join = |items: Vec<String>| items.join(", ");
                vec![
                    host.name.to_string(),
                    join(host.addresses.iter().map(ToString::to_string).collect()),
                    host.control.to_string(),
                    join(host.loopback.iter().map(ToString::to_string).collect()),
                    host.key.fingerprint(),
                ]
            })
            .collect();
        table(&["HOST", "ADDRESSES", "CONTROL", "LOOPBACK", "KEY"], &rows)
    });
    Ok(())
}
