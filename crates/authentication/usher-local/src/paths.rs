//! The paths of Usher's files and sockets. They are fixed, as those of OpenSSH are: a path that an
//! environment variable could change would be a way to talk to the wrong daemon.

use std::path::{Path, PathBuf};

/// The files that an administrator writes.
pub const CONFIGURATION_DIRECTORY: &str = "/etc/usher";
/// Policy files that an administrator edits; `usher policy apply` puts them in force.
pub const POLICY_DIRECTORY: &str = "/etc/usher/policy.d";
/// One folder a user: `authorized_keys`, and `disabled` when the user is.
pub const USERS_DIRECTORY: &str = "/etc/usher/users";
/// Revoked keys, as `ssh-keygen -k` writes them or one a line. If it is missing, none are revoked.
pub const REVOKED_KEYS: &str = "/etc/usher/revoked_keys";
/// Public keys of authorities whose certificates count for every user, one a line, in the form of sshd's
/// TrustedUserCAKeys. If it is missing, there are none.
pub const USER_AUTHORITIES: &str = "/etc/usher/user_ca_keys";
/// This host's private key, OpenSSH format, Ed25519, readable by root only.
pub const HOST_KEY: &str = "/etc/usher/host_key";
/// This host's public key, one OpenSSH line.
pub const HOST_PUBLIC_KEY: &str = "/etc/usher/host_key.pub";
/// The IKE keys. A folder of its own: the protector may read all that is in it, so a file there can be
/// replaced while it runs.
pub const IKE_DIRECTORY: &str = "/etc/usher/ike";
/// This host's private IKE key, OpenSSH format, Ed25519, readable by root only. charon authenticates this
/// host to others by it; the host key never does.
pub const IKE_KEY: &str = "/etc/usher/ike/key";
/// This host's public IKE key, one OpenSSH line.
pub const IKE_PUBLIC_KEY: &str = "/etc/usher/ike/key.pub";
/// The private IKE key that is to take the present one's place. It stays until the protector has taken it.
pub const NEXT_IKE_KEY: &str = "/etc/usher/ike/next_key";
/// Its public key.
pub const NEXT_IKE_PUBLIC_KEY: &str = "/etc/usher/ike/next_key.pub";
/// The private IKE key that has just been replaced, until the protector has taken the new one.
pub const FORMER_IKE_KEY: &str = "/etc/usher/ike/former_key";
/// The place of the IKE key in earlier versions; `usher init` moves it.
pub const EARLIER_IKE_KEY: &str = "/etc/usher/ike_key";
/// State that outlives a restart.
pub const STATE_DIRECTORY: &str = "/var/lib/usher";
/// The configuration in force: see [`crate::applied`].
pub const APPLIED: &str = "/var/lib/usher/applied.json";
/// The configuration that was in force before the last apply.
pub const APPLIED_PREVIOUS: &str = "/var/lib/usher/applied.previous.json";
/// The policies that were in force, one a file, for `usher policy history` and `revert`.
pub const HISTORY_DIRECTORY: &str = "/var/lib/usher/history";
/// The users' signing keys, one file a user, readable by the signer only: see [`crate::signing_key`].
pub const PRIVATE_KEYS_DIRECTORY: &str = "/var/lib/usher/keys";
/// The signed log, written by the recorder: see `usher_log`.
pub const LOG_DIRECTORY: &str = "/var/lib/usher/log";
/// Exists since the recorder began a log on this host, so that a missing log is noticed.
pub const LOG_BEGUN: &str = "/var/lib/usher/log_begun";
/// The log's private key, OpenSSH format, Ed25519, readable by the recorder only. Its comment is
/// the log's name.
pub const LOG_KEY: &str = "/etc/usher/log_key";
/// The log's public key, in the form of **ssh-keygen**.
pub const LOG_PUBLIC_KEY: &str = "/etc/usher/log_key.pub";
/// Pinned maps and links of the admission programs, on the BPF file system.
pub const PIN_DIRECTORY: &str = "/sys/fs/bpf/usher";
/// Pinned maps and links of the ownership programs.
pub const OWNERSHIP_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/ownership";
/// Pinned maps and links of the programs that restrict the connections of services.
pub const DESTINATIONS_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/destinations";
/// Pinned maps and links of the program that keeps unprotected packets from services.
pub const PROTECTED_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher/protected";
/// Pinned maps and links of the program that gates announced connections, which the signer loads. Not
/// below the keeper's folder, which only the keeper touches.
pub const SIGNER_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_signer";
/// Pinned maps and links of the programs that mark and check the packets of governed programs. The
/// protector's.
pub const PROTECTOR_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_protector";
/// Pinned maps and links of the modules of mandatory access control. The labeller's.
pub const LABELLER_PIN_DIRECTORY: &str = "/sys/fs/bpf/usher_labeller";
/// The labeller's files. A folder of its own: it may write to no other below.
pub const LABELLER_DIRECTORY: &str = "/var/lib/usher/labeller";
/// The modules that are loaded again after a reboot.
pub const LOADED_MODULES: &str = "/var/lib/usher/labeller/modules.json";
/// Modules from files during whose loading the labeller has ended, and how often.
pub const MODULE_TRIALS: &str = "/var/lib/usher/labeller/trials.json";
/// Modules from files: `NAME.bpf.o`.
pub const MODULE_DIRECTORY: &str = "/usr/local/lib/usher/mac";
/// The modules in force, one name a line, for every program of the host; without a module there is no
/// file.
pub const SHOWN_MODULES: &str = "/run/usher/labeller/modules";
/// The mounted file systems.
pub const MOUNTS: &str = "/proc/self/mountinfo";
/// The sysctls of the network.
pub const NETWORK_SYSCTLS: &str = "/proc/sys/net";
/// The former sysctls, before the protector set them. A reboot ends both.
pub const FORMER_SYSCTLS: &str = "/run/usher/protector/former_sysctls";
/// The protector's files. A folder of its own: it may write to no other below.
pub const PROTECTOR_DIRECTORY: &str = "/var/lib/usher/protector";
/// The last answers for the names in `network` statements.
pub const LAST_ANSWERS: &str = "/var/lib/usher/protector/last_answers.json";
/// The hosts that have negotiated SAs, by class.
pub const NEGOTIATED: &str = "/var/lib/usher/protector/negotiated.json";
/// Protector to resolver: see `usher_protection::ResolverRequest`.
pub const RESOLVER_NAMES: &str = "/run/usher/resolver/names.sock";
/// The control socket of charon (strongSwan), as Debian has it.
pub const CHARON: &str = "/run/charon.vici";
/// Verifier to keeper: fixed-size records.
pub const KEEPER_RECORDS: &str = "/run/usher/keeper/records.sock";
/// Keeper to recorder: see `usher_proto::recorder`.
pub const RECORDER: &str = "/run/usher/recorder/records.sock";
/// Processes of services to keeper: see `usher_proto::calls`.
pub const KEEPER_CALLS: &str = "/run/usher/keeper/calls.sock";
/// Verifier to keeper: the host key's handle.
pub const KEEPER_HOST_KEY: &str = "/run/usher/keeper/host-key.sock";
/// Applications to signer: see `usher_proto::local`.
pub const SIGNER_APPLICATIONS: &str = "/run/usher/signer/applications.sock";
/// Courier to signer: frames to carry and their answers.
pub const SIGNER_RELAY: &str = "/run/usher/signer/relay.sock";
/// Courier to signer: the host key's handle.
pub const SIGNER_HOST_KEY: &str = "/run/usher/signer/host-key.sock";

/// The place of one of the administrator's files in a folder like [`CONFIGURATION_DIRECTORY`].
#[must_use]
pub fn within(folder: &Path, path: &str) -> PathBuf {
    let name = path.strip_prefix(CONFIGURATION_DIRECTORY).unwrap_or(path);
    folder.join(name.trim_start_matches('/'))
}
