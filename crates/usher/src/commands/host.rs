//! `usher host`: host blocks of the policy folder.

use std::path::{Path, PathBuf};

use usher_base::HostName;
use usher_daemon::files::write_atomically;
use usher_local::applied::Applied;
use usher_local::paths;
use usher_policy::protection::IkePublicKey;
use usher_policy::{
    BlockKind, Clause, Host, PolicyError, PolicyMistake, Source, joined, parse_with_places,
};
use usher_proto::host_key::HostPublicKey;

use super::configuration;
use crate::failure::{At, Failure};
use crate::output::{Output, row, table};

/// Options of `usher host add`: the statements of a host block.
#[derive(Debug, clap::Args)]
pub struct Statements {
    /// Name of the host
    name: HostName,
    /// Address of the host; repeat for more
    #[arg(long, required = true)]
    address: Vec<std::net::IpAddr>,
    /// Public key of the host: the line that `usher init` printed there; repeat for the one that takes its place
    #[arg(long, required = true)]
    key: Vec<String>,
    /// Public IKE key of the host: what `usher init` printed there as its `ike-key`, or its ECDSA P-256 key;
    /// repeat for more
    #[arg(long)]
    ike_key: Vec<String>,
    /// Port of the host's control channel
    #[arg(long, default_value_t = 3440)]
    control: u16,
    /// Local address at which `usher proxy` serves the host; repeat for more
    #[arg(long)]
    loopback: Vec<std::net::Ipv4Addr>,
}

/// The key of a statement as `usher init` prints it: `ike-key "KEY";`, where that is the keyword. Other text is
/// returned as it is.
fn key_of_statement<'l>(keyword: &str, line: &'l str) -> &'l str {
    let value = line.trim().strip_prefix(keyword);
    let value = value.and_then(|value| value.trim_end_matches([';', ' ']).trim().strip_prefix('"'));
    value
        .and_then(|value| value.strip_suffix('"'))
        .unwrap_or(line)
}

/// Writes `host-NAME.policy`.
///
/// # Errors
/// When the policy with this block would have errors, or the block exists.
pub fn add_host(output: &Output, host: &Statements) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let wrong = |option: &str, error: &dyn std::fmt::Display| {
        Failure::Refused(format!(
            "{option}: {error}; give the line that `usher init` printed on {}",
            host.name
        ))
    };
    let keys = host.key.iter().map(|line| {
        let key = HostPublicKey::from_openssh(key_of_statement("key", line));
        key.map_err(|error| wrong("--key", &error))
    });
    let keys = keys.collect::<Result<Vec<_>, _>>()?;
    let ike_keys = host.ike_key.iter().map(|line| {
        let key = key_of_statement("ike-key", line).parse::<IkePublicKey>();
        key.map_err(|error| wrong("--ike-key", &error))
    });
    let ike_keys = ike_keys.collect::<Result<Vec<_>, _>>()?;
    let path = file_of(&host.name);
    if path.exists() {
        return Err(Failure::HostExists(path));
    }
    let text = block(host, &keys, &ike_keys);
    let mut whole = configuration::collect()?;
    whole.sources.push(Source {
        name: path.display().to_string(),
        text: text.clone(),
    });
    configuration::check_applied(&whole)?;
    write_atomically(&path, text.as_bytes(), 0o644).at(&path)?;
    // JSON of `usher host add`:
    //   file: The file that was written or removed.
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
/// When the block is in another file, or this file has more; when the policy still names the host.
pub fn remove(output: &Output, name: &HostName) -> Result<(), Failure> {
    let _lock = configuration::lock()?;
    let path = file_of(name);
    let shown = path.display().to_string();
    let mut whole = configuration::collect()?;
    block_file(&whole, name)?;
    whole.sources.retain(|file| file.name != shown);
    configuration::check_applied(&whole).map_err(|failure| still_named(failure, name))?;
    std::fs::remove_file(&path).at(&path)?;
    // JSON of `usher host remove`: as `usher host add`.
    output.print(&serde_json::json!({ "file": path }), || {
        format!("removed {shown}; `usher policy apply` ends the host's sessions")
    });
    Ok(())
}

/// The file that `usher host add` wrote for a host.
///
/// # Errors
/// When the block is in another file, or this file has more.
pub(super) fn block_file<'w>(whole: &'w Applied, name: &HostName) -> Result<&'w Source, Failure> {
    let path = file_of(name).display().to_string();
    let file = whole.sources.iter().find(|file| file.name == path);
    match file.filter(|file| is_alone(file, name)) {
        Some(file) => Ok(file),
        None => Err(elsewhere(whole, name)?),
    }
}

/// The reason why `usher host` does not change the block of a host.
fn elsewhere(whole: &Applied, name: &HostName) -> Result<Failure, Failure> {
    configuration::check_applied(whole)?;
    let block = Clause::block(BlockKind::Host, name);
    let place = parse_with_places(&whole.sources, &whole.known_groups())
        .ok()
        .and_then(|(_, places)| places.place(&block));
    Ok(Failure::Refused(match place {
        Some(place) => format!(
            "{place}: the block of {name} is not alone in its file, or `usher host add` did not write \
             the file; change the block there"
        ),
        None => format!("the policy folder has no host {name}; `usher host list` lists its hosts"),
    }))
}

/// Whether a file has the block of this host and nothing else.
fn is_alone(file: &Source, name: &HostName) -> bool {
    let alone = usher_policy::parse_policy(std::slice::from_ref(file));
    alone.is_ok_and(|policy| {
        let block = policy.hosts.get(name).map(Host::to_text);
        block.is_some_and(|block| block == policy.to_text())
    }) && usher_policy::includes(file).is_empty()
}

/// Turns a failure about an unknown host into the places that name it. Other failures stay.
fn still_named(failure: Failure, name: &HostName) -> Failure {
    let Failure::Policy { errors, .. } = &failure else {
        return failure;
    };
    let is_named = |error: &&PolicyError| matches!(error.is(), Some(PolicyMistake::UnknownHost { found, .. }) if found == name);
    let named = errors.iter().filter(is_named);
    let places: Vec<String> = named.map(|error| error.place.to_string()).collect();
    if places.len() < errors.len() {
        return failure;
    }
    Failure::Refused(format!(
        "the policy still names {name}: {}; remove it there first",
        places.join(", ")
    ))
}

/// The file in which `usher host add` writes the block of a host.
pub(super) fn file_of(name: &HostName) -> PathBuf {
    Path::new(paths::POLICY_DIRECTORY).join(format!("host-{name}.policy"))
}

fn block(host: &Statements, keys: &[HostPublicKey], ike_keys: &[IkePublicKey]) -> String {
    let mut text = format!("host {} {{\n", host.name);
    text += &format!("  address {};\n", joined(&host.address, ", "));
    let keys = keys.iter().map(|key| format!("\"{key}\""));
    text += &format!("  key {};\n", joined(keys, ", "));
    if !ike_keys.is_empty() {
        let keys = ike_keys.iter().map(|key| format!("\"{key}\""));
        text += &format!("  ike-key {};\n", joined(keys, ", "));
    }
    text += &format!("  control {};\n", host.control);
    if !host.loopback.is_empty() {
        text += &format!("  loopback {};\n", joined(&host.loopback, ", "));
    }
    text.push_str("}\n");
    text
}

/// Prints the hosts of the policy folder.
pub fn show(output: &Output) -> Result<(), Failure> {
    let policy = configuration::check_applied(&configuration::collect()?)?.policy;
    let hosts: Vec<_> = policy.hosts.values().collect();
    // JSON of `usher host list`: a list of [`Host`].
    output.print(&hosts, || {
        let rows = hosts.iter().map(|host| {
            row![
                host.name,
                joined(&host.addresses, ", "),
                host.control,
                joined(&host.loopback, ", "),
                joined(host.keys.iter().map(HostPublicKey::fingerprint), ", "),
            ]
        });
        if hosts.is_empty() {
            "no hosts\n".to_owned()
        } else {
            table(["HOST", "ADDRESSES", "CONTROL", "LOOPBACK", "KEY"], rows)
        }
    });
    Ok(())
}
