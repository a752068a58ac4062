//! `usher init`: prepares a host. It keeps what exists, and may run again, also to put the owners of
//! restored files right.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ssh_key::private::{Ed25519Keypair, KeypairData};
use usher_base::HostName;
use usher_daemon::files::{Owner, write_atomically, write_atomically_for};
use usher_daemon::role::HasRole;
use usher_local::paths;
use usher_local::roles::{self, ROLES};
use zeroize::Zeroizing;

use super::owners;
use crate::accounts;
use crate::failure::{At, Failure};
use crate::output::{Output, warn};

const EXAMPLE: &str = include_str!("example.policy");

/// Makes folders, accounts, the host key, the IKE key and the log's key. Gives the log and the users' keys
/// to their accounts.
///
/// # Errors
/// When something cannot be made. The next run continues with the rest.
pub fn run(output: &Output, name: Option<HostName>) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::refused(
            "`usher init` makes accounts and a host key; run it as root",
        ));
    }
    for account in ROLES.iter().filter_map(|role| role.own_account()) {
        make_account(account)?;
    }
    for (folder, mode) in [
        ("/etc/usher", 0o755),
        (paths::POLICY_DIRECTORY, 0o755),
        (paths::USERS_DIRECTORY, 0o755),
        (paths::STATE_DIRECTORY, 0o755),
        (paths::IKE_DIRECTORY, 0o755),
    ] {
        std::fs::create_dir_all(folder).at(folder)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).at(folder)?;
    }
    make_example()?;
    let given = name.is_some();
    let name = match name {
        Some(name) => name,
        None => host_name()?,
    };
    let public = make_host_key(&name)?;
    if let Some(other) = public.splitn(3, ' ').nth(2)
        && given
        && other != name.as_ref()
    {
        warn(&format!(
            "--name {name} counts only for keys that are made now: this host's key is there already, and \
             its name is {other}"
        ));
    }
    let ike = make_ike_key(&name)?;
    make_log_key(&name)?;
    let repaired = owners::repair()?;
    // JSON of `usher init`:
    //   host: The name of this host.
    //   public_key: Its public key, a line in OpenSSH's form.
    //   ike_key: Its public IKE key.
    //   repaired: List of texts: the files that were given to their account.
    let value = serde_json::json!({
        "host": name, "public_key": public, "ike_key": ike, "repaired": repaired,
    });
    output.print(&value, || {
        let given = repaired.iter();
        let given = given.map(|path| format!("given to its account: {}\n", path.display()));
        given.collect::<String>() + &format!(
            "This host is ready. Its public key:\n\n{public}\n\nIts IKE key, for its `host` block \
             (`application` blocks and `protection` need it):\n\nike-key \"{ike}\";\n\nNext: make this host and the \
             others known (usher host add), write the policy ({}),\nmake users known (usher user \
             add), then put it in force (usher policy apply) and start the daemons.\n",
            paths::POLICY_DIRECTORY
        )
    });
    Ok(())
}

fn make_account(name: &str) -> Result<(), Failure> {
    if accounts::look_up(name)?.is_some() {
        return Ok(());
    }
    let status = Command::new("useradd")
        .args(["--system", "--user-group", "--no-create-home"])
        .args([
            "--home-dir",
            "/nonexistent",
            "--shell",
            "/usr/sbin/nologin",
            name,
        ])
        .status()
        .at("useradd")?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Refused(format!(
            "useradd could not make the account {name} ({status})"
        )))
    }
}

fn host_name() -> Result<HostName, Failure> {
    let name = nix::unistd::gethostname()
        .map_err(|error| Failure::Refused(format!("cannot read the host's name: {error}")))?;
    name.to_string_lossy().parse().map_err(|_| {
        Failure::Refused(format!(
            "the policy language cannot use the host's name {}; give another with --name",
            name.display()
        ))
    })
}

/// Makes the host key if there is none, and returns its public line.
fn make_host_key(name: &HostName) -> Result<String, Failure> {
    let private = Path::new(paths::HOST_KEY);
    make_key(private, name.to_string())?;
    write_public_key(private, Path::new(paths::HOST_PUBLIC_KEY))
}

/// Makes the IKE key if there is none, and returns its public line without the comment, as a `host`
/// block has it.
fn make_ike_key(name: &HostName) -> Result<String, Failure> {
    let private = Path::new(paths::IKE_KEY);
    let earlier = Path::new(paths::EARLIER_IKE_KEY);
    if earlier.exists() && !private.exists() {
        std::fs::rename(earlier, private).at(earlier)?;
    }
    make_key(private, format!("{name}/ike"))?;
    let line = write_public_key(private, Path::new(paths::IKE_PUBLIC_KEY))?;
    Ok(without_comment(&line))
}

/// A public key's line as `host` blocks have it.
pub fn without_comment(line: &str) -> String {
    line.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Writes the public side of a key beside it, and returns its line.
///
/// # Errors
/// When the key is missing or unusable, or the file cannot be written.
pub fn write_public_key(private: &Path, public: &Path) -> Result<String, Failure> {
    let line = public_line(private)?;
    write_atomically(public, format!("{line}\n").as_bytes(), 0o644).at(public)?;
    Ok(line)
}

/// The public side of a key, as a line.
///
/// # Errors
/// When the key is missing or unusable.
pub fn public_line(private: &Path) -> Result<String, Failure> {
    let problem = |error: ssh_key::Error| {
        let reason = format!("not an Ed25519 key in OpenSSH's format ({error})");
        Failure::of_file(private, reason)
    };
    let text = Zeroizing::new(std::fs::read(private).at(private)?);
    let key = ssh_key::PrivateKey::from_openssh(text.as_slice()).map_err(problem)?;
    key.public_key().to_openssh().map_err(problem)
}

/// Makes the key that signs the log's checkpoints if there is none. The key's comment is the log's name;
/// a log under another name is another log.
fn make_log_key(name: &HostName) -> Result<(), Failure> {
    let path = Path::new(paths::LOG_KEY);
    make_recorders_key(path, format!("{name}/usher"))?;
    write_public_key(path, Path::new(paths::LOG_PUBLIC_KEY)).map(drop)
}

/// Makes a key of the log if there is none, or gives the one that there is to the recorder, which alone may read
/// it.
///
/// # Errors
/// When the file cannot be written, or there is no such account.
pub fn make_recorders_key(path: &Path, comment: String) -> Result<(), Failure> {
    let recorder = accounts::account_of_role(roles::Recorder::ROLE)?;
    let (uid, gid) = (recorder.uid.as_raw(), recorder.gid.as_raw());
    if path.exists() {
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).at(path)?;
        return std::os::unix::fs::chown(path, Some(uid), Some(gid)).at(path);
    }
    let text = fresh_key(path, comment)?;
    write_atomically_for(path, text.as_bytes(), 0o600, Owner { uid, gid }).at(path)
}

/// Makes an Ed25519 key if there is none.
///
/// # Errors
/// When the file cannot be written.
pub fn make_key(path: &Path, comment: String) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    let text = fresh_key(path, comment)?;
    write_atomically(path, text.as_bytes(), 0o600).at(path)
}

/// A new Ed25519 key, as the file of that path has it.
fn fresh_key(path: &Path, comment: String) -> Result<Zeroizing<String>, Failure> {
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *seed)
        .map_err(|error| Failure::Refused(format!("the kernel has no random numbers: {error}")))?;
    let pair = KeypairData::from(Ed25519Keypair::from_seed(&seed));
    ssh_key::PrivateKey::new(pair, comment)
        .and_then(|key| key.to_openssh(ssh_key::LineEnding::LF))
        .map_err(|error| Failure::Refused(format!("cannot encode {}: {error}", path.display())))
}

/// Writes an example policy, which permits nothing, into an empty policy folder.
fn make_example() -> Result<(), Failure> {
    let folder = Path::new(paths::POLICY_DIRECTORY);
    let empty = std::fs::read_dir(folder).at(folder)?.next().is_none();
    if empty {
        let path = folder.join("10-local.policy");
        write_atomically(&path, EXAMPLE.as_bytes(), 0o644).at(path)?;
    }
    Ok(())
}
