//! Mistakes in `application` blocks besides those of form, each with its text and its remedy.

use usher_language::{Found, Name, Place, did_you_mean, mistakes};

use crate::limits::{MAXIMUM_ITEMS, MAXIMUM_NETWORKS};

mistakes! {
    /// The mistakes. `found` is the text at fault, `nearest` what was most likely meant, `first` the
    /// earlier text that this one contradicts.
    pub enum ProtectionMistake {
        /// Neither an absolute path nor the name of a program.
        InvalidProgram { found: Found }
            => "`{found}` is neither the name of a program nor a plain absolute path";
            "write a name such as sshd, of letters, digits, `_`, `.`, `+` and `-`, or a path such as \
             /usr/sbin/sshd";
        /// A program in two `application` blocks, or twice in one.
        DuplicateProgram { found: Found, first: Place }
            => "`{found}` already has a policy at {first}";
            "write all of a program's policy in one `application` block";
        /// The program of Usher's daemons. The keeper's listeners would be governed only if it made them
        /// after the policy, and it holds copies of other programs' sockets.
        OwnDaemons { found: Found }
            => "`{found}` is the program of Usher's daemons, which no `application` block governs";
            "to protect connections with services, write `protection encryption;` into their `service` \
             blocks, and into the `client` blocks of their users' hosts";
        /// A protection that the `application` block does not define.
        UnknownProtection { found: Name, nearest: Option<String> }
            => "no `protection` block of this application is called `{found}`";
            "{}", did_you_mean(nearest, format_args!(
                "add a block `protection {found} {{ ... }}` to this `application` block"));
        /// A word that is neither a port nor `any`.
        InvalidItemPort { found: Found, form: String }
            => "`{found}` is neither a port nor `any`";
            "write {form}; ports are numbers from 1 to 65535";
        /// A blank beside the `=` of a port.
        BlankBesidePort { found: Found, form: String }
            => "`{found}` has a blank beside its `=`"; "write {form}";
        /// The treatment of a `network` stands before its peers, or two words of an item are exchanged.
        WrongOrder { found: Found, form: String }
            => "`{found}` stands too early"; "write {form}";
        /// An item that ends too early.
        ItemTooShort { missing: &'static str, form: String }
            => "{missing} is missing"; "write {form}";
        /// AH does not encrypt.
        EncryptionByAh { found: Found }
            => "`{found}` authenticates traffic and does not encrypt it";
            "write `authentication ... ah`, or `encryption` without `ah`, which authenticates as well";
        /// More of something than the tables of the kernel hold.
        TooMany { what: &'static str, most: usize, remedy: &'static str }
            => "the policy has more than {most} {what}"; "{remedy}";
        /// More than [`MAXIMUM_ITEMS`].
        TooManyItems { protection: Name, found: usize }
            => "`protection {protection}` has {found} items, more than {MAXIMUM_ITEMS}";
            "write items with `any`, which stand for all ports, or use several protections";
        /// More than [`MAXIMUM_NETWORKS`].
        TooManyNetworks { application: String }
            => "with `application {application}` the networks take more than {MAXIMUM_NETWORKS} \
                entries of the kernel's tables";
            "name networks (`a/n`) in place of ranges that begin or end between two";
        /// More signatures than the mask of the socket mark holds.
        TooManySignatures { application: String, most: u16 }
            => "`application {application}` has networks unlike those of {most} others, and the \
                mask of the socket mark has room for {most} different ones";
            "choose a wider mask (`marks 0xffff0000;` has room for 4095), or write the same networks and \
             protections in several blocks: these share one";
    }
}
