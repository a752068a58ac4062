//! Defaults and limits of a policy's values.

use std::time::Duration;

/// Port of the control channel when a host does not say otherwise.
pub const DEFAULT_CONTROL_PORT: u16 = 3440;

/// How long a process of [`crate::Style::User`] lives without a connection, unless policy says otherwise.
pub const DEFAULT_IDLE: Duration = Duration::from_secs(5 * 60);

/// The longest session unless policy says otherwise.
pub const DEFAULT_SESSION: Duration = Duration::from_secs(8 * 60 * 60);

/// Lower end of `reauthenticate`: leaves a client two seconds to answer in.
pub const MINIMUM_REAUTHENTICATION: Duration = Duration::from_secs(5);

/// Limit of processes of one user at once in [`crate::Style::Connection`], unless policy says otherwise.
pub const DEFAULT_CONNECTIONS: u32 = 64;

/// Upper end of `connections`.
pub const MAXIMUM_CONNECTIONS: u32 = 65_536;

/// `umask` where a service does not say: only the user can read files that its processes make.
pub const DEFAULT_UMASK: u16 = 0o077;
/// Limit of tasks of one user at once, unless policy says otherwise.
pub const DEFAULT_PROCESSES: u32 = 1024;

/// Upper end of `processes`: the number of process numbers that Linux has (PID_MAX_LIMIT).
pub const MAXIMUM_PROCESSES: u32 = 4 * 1024 * 1024;

/// Limit of tasks of one user at once, over all services, unless policy says otherwise.
pub const DEFAULT_EACH_USER_PROCESSES: u32 = 2048;

/// Lower end of `memory`, in bytes.
pub const MINIMUM_MEMORY: u64 = 1 << 20;

/// Upper end of `memory`, in bytes.
pub const MAXIMUM_MEMORY: u64 = 1 << 50;

/// Upper end of `cpu`: the time of a thousand processors, in percent of one.
pub const MAXIMUM_CPU: u32 = 100_000;

/// Upper end of `session` and `idle`: seven days. A session outlives the signature that opened
/// it, so it is kept short enough that a stolen one ends by itself.
pub const MAXIMUM_DURATION: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// How long a client host may be silent, unless policy says otherwise. The kernel sends unacknowledged data
/// again for about as long (tcp_retries2 of tcp(7)).
pub const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(15 * 60);

/// Lower end of `keepalive`: several probes may be lost, and the keeper must see the last ones unanswered.
pub const MINIMUM_KEEPALIVE: Duration = Duration::from_secs(30);

/// Upper end of `keepalive`: half of it must be within the kernel's limit of TCP_KEEPIDLE, 32,767 s.
pub const MAXIMUM_KEEPALIVE: Duration = Duration::from_secs(18 * 60 * 60);

/// Limit of addresses of one host: what a request to the courier carries (docs/PROTOCOL.md).
pub const MAXIMUM_HOST_ADDRESSES: usize = usher_proto::MAX_CONTROL_ADDRESSES;

/// Limit of keys of one host: its key, and the one that takes its place or that it has replaced.
pub const MAXIMUM_HOST_KEYS: usize = usher_proto::MAX_HOST_KEYS;

/// Limit of IKE keys of one host and algorithm: its key, and the one that takes its place or that it has replaced.
pub const MAXIMUM_IKE_KEYS: usize = 2;

/// Limit of bytes of a program with its arguments, and of an environment, each string with its ending
/// zero: half of what execve(2) takes in a single string (MAX_ARG_STRLEN, 128 KiB), so that a
/// worker's start never fails on its length.
pub const MAXIMUM_ARGUMENT_BYTES: usize = 64 * 1024;

/// Limit of entries of `files`: each is a look-up at a process's start.
pub const MAXIMUM_FILE_RULES: usize = 64;

/// Limit of the path of a local socket, in bytes (unix(7): sun_path, without its ending zero).
pub(crate) const MAXIMUM_SOCKET_BYTES: usize = 107;

/// Limit of the name of a header for a user's name, in bytes.
pub(crate) const MAXIMUM_HEADER_BYTES: usize = 64;
