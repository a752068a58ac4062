//! The bits of permissions. In settings, the number of a class is its place in the language's list.

use usher_label::CAPABILITIES;
use usher_mac_blocks::te::Class;

use crate::shared::{
    MAC_TE_ACCEPT, MAC_TE_ADD_NAME, MAC_TE_APPEND, MAC_TE_BIND, MAC_TE_CAPABILITY, MAC_TE_CONNECT,
    MAC_TE_CREATE, MAC_TE_ENTRYPOINT, MAC_TE_EXECMEM, MAC_TE_EXECUTE, MAC_TE_FILE, MAC_TE_GETATTR,
    MAC_TE_IOCTL, MAC_TE_LINKS, MAC_TE_LISTEN, MAC_TE_NETWORK, MAC_TE_PTRACE, MAC_TE_READ,
    MAC_TE_REMOVE_NAME, MAC_TE_RENAME, MAC_TE_SEARCH, MAC_TE_SETATTR, MAC_TE_SETSCHED,
    MAC_TE_SIGNAL, MAC_TE_SOCKET, MAC_TE_TRANSITION, MAC_TE_UNLINK, MAC_TE_WRITE,
};

// `Class` has the numbers of bpf/: the first one, the last one of files and the last one.
const _: () = assert!(Class::File as u32 == MAC_TE_FILE);
const _: () = assert!(Class::Socket as u32 == MAC_TE_SOCKET);
const _: () = assert!(Class::Capability as u32 == MAC_TE_CAPABILITY);

/// The words of permissions.
const WORDS: [(&str, u32); 25] = [
    ("read", MAC_TE_READ),
    ("write", MAC_TE_WRITE),
    ("append", MAC_TE_APPEND),
    ("execute", MAC_TE_EXECUTE),
    ("entrypoint", MAC_TE_ENTRYPOINT),
    ("getattr", MAC_TE_GETATTR),
    ("setattr", MAC_TE_SETATTR),
    ("create", MAC_TE_CREATE),
    ("unlink", MAC_TE_UNLINK),
    ("rename", MAC_TE_RENAME),
    ("link", MAC_TE_LINKS),
    ("search", MAC_TE_SEARCH),
    ("add_name", MAC_TE_ADD_NAME),
    ("remove_name", MAC_TE_REMOVE_NAME),
    ("ioctl", MAC_TE_IOCTL),
    ("connect", MAC_TE_CONNECT),
    ("bind", MAC_TE_BIND),
    ("listen", MAC_TE_LISTEN),
    ("accept", MAC_TE_ACCEPT),
    ("network", MAC_TE_NETWORK),
    ("signal", MAC_TE_SIGNAL),
    ("ptrace", MAC_TE_PTRACE),
    ("setsched", MAC_TE_SETSCHED),
    ("transition", MAC_TE_TRANSITION),
    ("execmem", MAC_TE_EXECMEM),
];

/// The bit of a permission; for [`Class::Capability`] that of a capability, by its number.
fn bit(class: Class, word: &str) -> Option<u64> {
    if class == Class::Capability {
        let number = CAPABILITIES.iter().position(|own| *own == word);
        return number.map(|number| 1 << number);
    }
    let mut words = WORDS.into_iter();
    let found = words.find(|(own, _)| *own == word);
    found.map(|(_, bit)| bit.into())
}

/// The bits of permissions. The module knows all words of the language, and would permit nothing by another one.
pub(super) fn bits<'w>(class: Class, words: impl IntoIterator<Item = &'w str>) -> u64 {
    let bits = words.into_iter().filter_map(|word| bit(class, word));
    bits.fold(0, |all, bit| all | bit)
}

/// The words of permissions.
pub(super) fn words(class: Class, bits: u64) -> Vec<&'static str> {
    if class == Class::Capability {
        let all = CAPABILITIES.into_iter().enumerate();
        let own = all.filter(|(number, _)| bits >> number & 1 == 1);
        return own.map(|(_, word)| word).collect();
    }
    let own = WORDS
        .into_iter()
        .filter(|(_, bit)| bits & u64::from(*bit) != 0);
    own.map(|(word, _)| word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_knows_each_word_of_the_language() {
        for class in Class::ALL {
            for word in class.permissions() {
                assert_eq!(words(*class, bits(*class, [*word])), [*word], "{class}");
            }
            assert_eq!(bits(*class, ["no-such"]), 0);
        }
    }
}
