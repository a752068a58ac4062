//! An unmodified charon on each of several hosts.

macro_rules! guest_test {
    ($($(#[doc = $doc:expr])* fn $name:ident() $body:block)*) => {$(
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            if let Some(reason) = crate::world::reason_to_skip() {
                println!("skipped: {reason}");
                return;
            }
            let runtime = Runtime::new().expect("a runtime");
            let _entered = runtime.enter();
            $body
        }
    )*};
}

mod peers;
mod rekeying;
mod sas;
mod world;
