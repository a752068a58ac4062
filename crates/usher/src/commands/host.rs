//! `usher host`: host blocks of the policy folder.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use usher_local::applied::{Applied, PolicyFile};
use usher_local::files::write_atomically;
use usher_local::paths;
use usher_policy::{BlockKind, Clause, Host, PolicyErrorKind, Source, parse_with_places};
use usher_proto::host_key::HostPublicKey;
use usher_proto::name::HostName;

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
    let path = file_of(&host.name);
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

/// Removes `host-NAME.policy`.
///
/// # Errors
/// When the block is in another file, or not alone in this one; when the policy still names the host.
pub fn remove(output: &Output, name: &HostName) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let path = file_of(name);
    let shown = path.display().to_string();
    let mut whole = configuration::collect()?;
    let sources = whole.policy_sources();
    let Some(file) = sources.iter().find(|file| file.name == shown) else {
        return Err(elsewhere(&whole, name)?);
    };
    if !is_alone(file, name) {
        return Err(elsewhere(&whole, name)?);
    }
    whole.sources.retain(|file| file.name != shown);
    configuration::check(&whole).map_err(|failure| still_named(failure, name))?;
    std::fs::remove_file(&path).at(&path)?;
    output.print(&serde_json::json!({ "file": path }), || {
        format!("removed {shown}; `usher policy apply` ends what comes from the host")
    });
    Ok(())
}

/// Why `usher host remove` does not remove the block of a host.
fn elsewhere(whole: &Applied, name: &HostName) -> Result<Failure, Failure> {
    configuration::check(whole)?;
    let sources = whole.policy_sources();
    let block = Clause::block(BlockKind::Host, name);
    let place = parse_with_places(&sources, &whole.known_groups())
        .ok()
        .and_then(|(_, places)| places.place(&block));
    Ok(Failure::Question(match place {
        Some(place) => format!(
            "{place}: the block of {name} is in a file that has more, or that `usher host add` did \
             not write: remove the block there"
        ),
        None => format!("the policy folder has no host {name}; `usher host list` lists its hosts"),
    }))
}

/// Whether a file has the block of this host and nothing else.
fn is_alone(file: &Source, name: &HostName) -> bool {
    let alone = usher_policy::parse(std::slice::from_ref(file));
    alone.is_ok_and(|policy| {
        let block = policy.hosts.get(name).map(Host::to_text);
        block.is_some_and(|block| block == policy.to_text())
    }) && usher_policy::includes(file).is_empty()
}

/// Where the policy names a host whose block it lacks; any other failure as it is.
fn still_named(failure: Failure, name: &HostName) -> Failure {
    let Failure::Policy { errors, .. } = &failure else {
        return failure;
    };
    let named = errors.iter().filter(
        |error| matches!(&error.kind, PolicyErrorKind::UnknownHost { found, .. } if found == name),
    );
    let places: Vec<String> = named
        .map(|error| format!("{}:{}:{}", error.file, error.line, error.column))
        .collect();
    if places.len() < errors.len() {
        return failure;
    }
    Failure::Question(format!(
        "the policy still names {name}: {}; take it out there first",
        places.join(", ")
    ))
}

/// Where `usher host add` writes the block of a host.
fn file_of(name: &HostName) -> PathBuf {
    Path::new(paths::POLICY_DIRECTORY).join(format!("host-{name}.policy"))
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
