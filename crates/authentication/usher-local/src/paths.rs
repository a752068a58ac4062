//! The paths of Usher's files and sockets. They are fixed, as those of OpenSSH are: a path that an
//! environment variable could change would be a way to talk to the wrong daemon.

use std::path::{Path, PathBuf};

/// The administrator's files, and keys.
///
/// Owner: root, 0755. Made by: `usher init`. Backup: yes, all of it. Lost: what follows.
pub const CONFIGURATION_DIRECTORY: &str = "/etc/usher";
/// Policy files that an administrator edits; `usher policy apply` puts them in force.
///
/// Owner: root, 0755; files 0644. Made by: `usher init`, with an example that permits nothing. Backup: yes.
/// Lost: what is in force stays, and `usher policy show` prints it.
pub const POLICY_DIRECTORY: &str = "/etc/usher/policy.d";
/// One folder a user, with the user's lists of public keys, `authorized_keys` and `authorized_keys.KEY`,
/// and `disabled` when the user is.
///
/// Owner: root; files 0644. Made by: `usher init`; `usher user` writes the files. Backup: yes. Lost: at the
/// next apply, users are refused until their keys are added again; **a disabled user who has a certificate
/// is admitted again**.
pub const USERS_DIRECTORY: &str = "/etc/usher/users";
/// Revoked keys, as `ssh-keygen -k` writes them or one a line. If it is missing, none are revoked.
///
/// Owner: root; only root may write it. Made by: the administrator. Backup: yes. Lost: at the next apply,
/// **revoked keys are accepted again**.
pub const REVOKED_KEYS: &str = "/etc/usher/revoked_keys";
/// Public keys of authorities whose certificates count for every user, one a line, in the form of sshd's
/// TrustedUserCAKeys. If it is missing, there are none.
///
/// Owner: root; only root may write it. Made by: the administrator. Backup: yes. Lost: at the next apply,
/// certificates are refused.
pub const USER_AUTHORITIES: &str = "/etc/usher/user_ca_keys";
/// This host's private key, OpenSSH format, Ed25519, readable by root only.
///
/// Owner: root, 0600. Made by: `usher init`. Backup: yes, secret. Lost: other hosts do not know this host;
/// `usher init` makes another key, to be written into this host's block on every host.
pub const HOST_KEY: &str = "/etc/usher/host_key";
/// This host's public key, one OpenSSH line.
///
/// Owner: root, 0644. Made by: `usher init`. Backup: yes. Lost: `usher init` writes it again.
pub const HOST_PUBLIC_KEY: &str = "/etc/usher/host_key.pub";
/// The private host key that is to take the present one's place.
///
/// Owner: root, 0600. Made by: `usher host new-key`; `usher host use-key` removes it. Backup: yes, secret. Lost:
/// make another one.
pub const NEXT_HOST_KEY: &str = "/etc/usher/next_host_key";
/// Its public key.
///
/// Owner: root, 0644. Made by: `usher host new-key`. Backup: yes. Lost: run that again.
pub const NEXT_HOST_PUBLIC_KEY: &str = "/etc/usher/next_host_key.pub";
/// The private host key that was replaced. No daemon that has started since uses it.
///
/// Owner: root, 0600. Made by: `usher host use-key`; `usher host forget-key` removes it. Backup: no. Lost: nothing.
pub const FORMER_HOST_KEY: &str = "/etc/usher/former_host_key";
/// Its public key. `usher agent` signs for it as well, because the signer uses it until it is restarted.
///
/// Owner: root, 0644. Made by: `usher host use-key`. Backup: no. Lost: nothing.
pub const FORMER_HOST_PUBLIC_KEY: &str = "/etc/usher/former_host_key.pub";
/// The IKE keys. A folder of its own: the protector may read all that is in it, so a file there can be
/// replaced while it runs.
///
/// Owner: root, 0755. Made by: `usher init`, or the protector. Backup: yes. Lost: what follows.
pub const IKE_DIRECTORY: &str = "/etc/usher/ike";
/// This host's private IKE key, OpenSSH format, Ed25519, readable by root only. charon authenticates this
/// host to others by it; the host key never does.
///
/// Owner: root, 0600. Made by: `usher init`. Backup: yes, secret. Lost: as the host key; mandatory traffic
/// with other hosts stops.
pub const IKE_KEY: &str = "/etc/usher/ike/key";
/// This host's public IKE key, one OpenSSH line.
///
/// Owner: root, 0644. Made by: `usher init`. Backup: yes. Lost: `usher init` writes it again.
pub const IKE_PUBLIC_KEY: &str = "/etc/usher/ike/key.pub";
/// This host's other private IKE key, in PKCS #8 (PEM), ECDSA P-256, readable by root only: for peers whose IKE
/// daemon has no Ed25519. charon gets it only while the policy has such a peer.
///
/// Owner: root, 0600. Made by: the administrator (`ssh-keygen -t ecdsa -b 256 -m PKCS8`). Backup: yes, secret.
/// Lost: the protector takes no policy whose block of this host has its public key, also when it starts: then
/// traffic with all peers, not only such ones, has no new SAs.
pub const ECDSA_IKE_KEY: &str = "/etc/usher/ike/ecdsa_key";
/// Its public key, one OpenSSH line.
///
/// Owner: root, 0644. Made by: the administrator, by the same command. Backup: yes. Lost: `ssh-keygen -y` prints
/// it; `usher protection new-key` leaves it out of its statement.
pub const ECDSA_IKE_PUBLIC_KEY: &str = "/etc/usher/ike/ecdsa_key.pub";
/// The private IKE key that is to take the present one's place. It stays until the protector has taken it.
///
/// Owner: root, 0600. Made by: `usher protection new-key`. Backup: yes, secret. Lost: make another one.
pub const NEXT_IKE_KEY: &str = "/etc/usher/ike/next_key";
/// Its public key.
///
/// Owner: root, 0644. Made by: `usher protection new-key`. Backup: yes. Lost: run that again.
pub const NEXT_IKE_PUBLIC_KEY: &str = "/etc/usher/ike/next_key.pub";
/// The private IKE key that has just been replaced, until the protector has taken the new one.
///
/// Owner: root, 0600. Made by: `usher protection use-key`, which removes it. Backup: no. Lost: nothing.
pub const FORMER_IKE_KEY: &str = "/etc/usher/ike/former_key";
/// The place of the IKE key in earlier versions; `usher init` moves it.
///
/// Owner: root, 0600. Made by: earlier versions. Backup: no. Lost: nothing, once it was moved.
pub const EARLIER_IKE_KEY: &str = "/etc/usher/ike_key";
/// State that outlives a restart. Its file `lock` is locked while the configuration changes.
///
/// Owner: root, 0755. Made by: `usher init`. Backup: yes, all of it. Lost: what follows.
pub const STATE_DIRECTORY: &str = "/var/lib/usher";
/// The configuration in force. Daemons read it, and not /etc/usher. Only `usher` writes it.
///
/// Owner: root, 0644. Made by: `usher policy apply` and other commands that put something in force. Backup:
/// yes. Lost: nothing is permitted once the daemons start again, until `usher policy apply`, which also
/// replaces a damaged one.
pub const APPLIED: &str = "/var/lib/usher/applied.json";
/// The configuration that was in force before the last apply.
///
/// Owner: root, 0644. Made by: the same. Backup: no. Lost: nothing.
pub const APPLIED_PREVIOUS: &str = "/var/lib/usher/applied.previous.json";
/// The newest 100 policies that were in force, one a file, for `usher policy history` and `revert`.
///
/// Owner: root; files 0644. Made by: `usher policy apply`, `revert` and `usher mac ugidfw`. Backup: yes.
/// Lost: the history.
pub const HISTORY_DIRECTORY: &str = "/var/lib/usher/history";
/// The users' signing keys, `NAME` and `NAME@KEY`: a private key, or the public key of a user who signs by
/// an agent, followed by its certificate if it has one.
///
/// Owner: usher-signer, 0700; files 0400. Made by: `usher user add`. Backup: yes, secret. Lost: `usher user
/// add --private-key` again for each user.
pub const PRIVATE_KEYS_DIRECTORY: &str = "/var/lib/usher/keys";
/// The signed log: `checkpoint`, `verifier-key`, and records and hashes below `tile`.
///
/// Owner: usher-recorder. Made by: the recorder. Backup: yes, with *checkpoint* copied before the rest.
/// Lost: the past; `usher log verify` by a checkpoint that was kept elsewhere shows that something is
/// missing.
pub const LOG_DIRECTORY: &str = "/var/lib/usher/log";
/// Exists since the recorder began a log on this host; the recorder warns if the log is missing then.
///
/// Owner: root. Made by: the recorder. Backup: yes. Lost: a missing log is not noticed.
pub const LOG_BEGUN: &str = "/var/lib/usher/log_begun";
/// The log's private key, OpenSSH format, Ed25519, readable by the recorder only. Its comment is
/// the log's name.
///
/// Owner: usher-recorder, 0600. Made by: `usher init`. Backup: yes, secret. Lost: the log cannot be
/// continued; see usherd(8), When the log is damaged.
pub const LOG_KEY: &str = "/etc/usher/log_key";
/// The log's public key, in the form of **ssh-keygen**.
///
/// Owner: root, 0644. Made by: `usher init`. Backup: yes. Lost: `usher init` writes it again.
pub const LOG_PUBLIC_KEY: &str = "/etc/usher/log_key.pub";
/// The private key that is to take the place of the log's key, or has done so in the log already.
///
/// Owner: usher-recorder, 0600. Made by: `usher log new-key`; `usher log forget-key` removes it. Backup: yes,
/// secret. Lost: if the log has it already, the log cannot be continued.
pub const NEXT_LOG_KEY: &str = "/etc/usher/next_log_key";
/// Its public key, in the form of **ssh-keygen**.
///
/// Owner: root, 0644. Made by: `usher log new-key`. Backup: no. Lost: `usher log new-key` writes it again.
pub const NEXT_LOG_PUBLIC_KEY: &str = "/etc/usher/next_log_key.pub";
/// Pinned tables and links of the admission programs. Where LSM programs guard it, it cannot be listed or
/// removed. To free one port, take the service out of the policy while the keeper runs; to free all,
/// usherd(8), release.
///
/// Owner: root, 0700. Made by: the keeper. Lost: while the keeper is stopped, **the ports of services are
/// open to everyone**.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/usher";
/// Pinned tables and links of the ownership programs.
///
/// Owner: root, 0700. Made by: the first keeper since the boot.
pub const OWNERSHIP_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/ownership";
/// Pinned tables and links of the programs that restrict the connections of services.
///
/// Owner: root, 0700. Made by: the keeper.
pub const DESTINATIONS_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/destinations";
/// Pinned tables and links of the program that keeps unprotected packets from services.
///
/// Owner: root, 0700. Made by: the keeper.
pub const PROTECTED_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/protected";
/// Pinned tables and links of the program that gates announced connections, which the signer loads. Not
/// below the keeper's folder, which only the keeper touches.
///
/// Owner: root, 0700. Made by: the signer.
pub const SIGNER_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_signer";
/// Pinned tables and links of the programs that mark and check the packets of governed programs. The
/// protector's.
///
/// Owner: root, 0700. Made by: the protector. Lost: while the protector is stopped, **nothing is
/// protected**.
pub const PROTECTOR_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_protector";
/// Pinned tables and links of the modules of mandatory access control. The labeller's.
///
/// Owner: root, 0700. Made by: the labeller. Lost: while the labeller is stopped, **no module decides**.
pub const LABELLER_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_labeller";
/// The labeller's files. It may write to no other folder below `/var/lib/usher`.
///
/// Owner: root, 0700. Made by: the labeller. Backup: yes. Lost: what follows.
pub const LABELLER_DIRECTORY: &str = "/var/lib/usher/labeller";
/// The modules that are loaded again after a reboot, with the digests of their files.
///
/// Owner: root, 0600. Made by: the labeller. Backup: yes. Lost: no module is in force after the next boot,
/// until `usher mac load`.
pub const LOADED_MODULES: &str = "/var/lib/usher/labeller/modules.json";
/// Modules from files during whose loading the labeller has ended, and how often.
///
/// Owner: root, 0600. Made by: the labeller. Backup: no. Lost: nothing; after three times it does not try
/// again before `usher mac load`.
pub const MODULE_TRIALS: &str = "/var/lib/usher/labeller/trials.json";
/// Modules of the administrator, `NAME.bpf.o`.
///
/// Owner: root; only root may write the files and each folder on the way. Made by: the administrator.
/// Backup: yes. Lost: the module is not loaded after the next boot.
pub const MODULE_DIRECTORY: &str = "/usr/local/lib/usher/mac";
/// The modules in force, one name a line, for every program of the host; without a module there is no
/// file.
///
/// Owner: root, 0644. Made by: the labeller.
pub const SHOWN_MODULES: &str = "/run/usher/labeller/modules";
/// The mounted file systems.
pub const MOUNTS: &str = "/proc/self/mountinfo";
/// The sysctls of the network.
pub const NETWORK_SYSCTLS: &str = "/proc/sys/net";
/// The former sysctls, before the protector set them. A reboot ends both.
///
/// Owner: root. Made by: the protector. Lost: the sysctls keep the protector's values until the next boot.
pub const FORMER_SYSCTLS: &str = "/run/usher/protector/former_sysctls";
/// The protector's files. It may write to no other folder below `/var/lib/usher`.
///
/// Owner: root, 0700. Made by: the protector. Backup: yes. Lost: what follows.
pub const PROTECTOR_DIRECTORY: &str = "/var/lib/usher/protector";
/// The last answers for the names in `network` statements.
///
/// Owner: root, 0600. Made by: the protector. Backup: yes. Lost: a name has no address until it is looked
/// up.
pub const LAST_ANSWERS: &str = "/var/lib/usher/protector/last_answers.json";
/// The hosts that have negotiated SAs, by class, with their public keys.
///
/// Owner: root, 0600. Made by: the protector. Backup: yes. Lost: **`optional` peers may be served in the
/// clear again** until they have negotiated.
pub const NEGOTIATED: &str = "/var/lib/usher/protector/negotiated.json";
/// Protector to resolver: names to look up.
///
/// Owner: root, 0600. Made by: the resolver.
pub const RESOLVER_NAMES: &str = "/run/usher/resolver/names.sock";
/// The control socket of charon (strongSwan), as Debian has it.
pub const CHARON: &str = "/run/charon.vici";
/// Verifier to keeper: what it has checked.
///
/// Owner: usher-verifier, 0600. Made by: the keeper.
pub const KEEPER_RECORDS: &str = "/run/usher/keeper/records.sock";
/// Keeper to recorder: what is to be recorded.
///
/// Owner: root, 0600. Made by: the recorder.
pub const RECORDER: &str = "/run/usher/recorder/records.sock";
/// Processes of services to keeper, see usher_accept_by_user(3): `usher_proto::calls`.
///
/// Owner: root, 0666: every process may ask. Made by: the keeper.
pub const KEEPER_CALLS: &str = "/run/usher/keeper/calls.sock";
/// Verifier to keeper: the host key's handle.
///
/// Owner: usher-verifier, 0600. Made by: the keeper.
pub const KEEPER_HOST_KEY: &str = "/run/usher/keeper/host-key.sock";
/// Applications to signer, see connect_by_user(3): `usher_proto::local`.
///
/// Owner: root, 0666: every process may ask. Made by: the signer.
pub const SIGNER_APPLICATIONS: &str = "/run/usher/signer/applications.sock";
/// Courier to signer: frames to carry and their answers.
///
/// Owner: usher-courier, 0600. Made by: the signer.
pub const SIGNER_RELAY: &str = "/run/usher/signer/relay.sock";
/// Courier to signer: the host key's handle.
///
/// Owner: usher-courier, 0600. Made by: the signer.
pub const SIGNER_HOST_KEY: &str = "/run/usher/signer/host-key.sock";

/// The place of one of the administrator's files in a folder like [`CONFIGURATION_DIRECTORY`].
#[must_use]
pub fn within(folder: &Path, path: &str) -> PathBuf {
    let name = path.strip_prefix(CONFIGURATION_DIRECTORY).unwrap_or(path);
    folder.join(name.trim_start_matches('/'))
}
