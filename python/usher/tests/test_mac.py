"""Labels of real files, by the real library."""

import errno
import os
import tempfile
import unittest

import usher
from usher import mac


class Labels(unittest.TestCase):
    """Labels on a file of a temporary directory. Setting them takes root."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "file")
        self.link = os.path.join(folder.name, "link")
        with open(self.path, "w"):
            os.symlink("file", self.link)

    def assert_fails(self, number, call, *arguments):
        with self.assertRaises(usher.UsherError) as raised:
            call(*arguments)
        self.assertEqual(errno.errorcode[raised.exception.errno], errno.errorcode[number])

    @unittest.skipUnless(os.geteuid() == 0, "only root sets labels")
    def test_a_label_is_set_merged_and_read(self):
        self.assertEqual(mac.get(self.path, "?biba,?mls"), "")
        mac.set(self.link, "mls/low,biba/high")
        mac.set(self.link, "biba/low", follow_symlinks=False)
        with open(self.path) as file:
            mac.set(file, "mls/high")
            self.assertEqual(mac.get(file, "?mls,?biba"), "biba/high,mls/high")
        self.assertEqual(mac.get(os.fsencode(self.path), "mls"), "mls/high")
        self.assertEqual(mac.get(self.link, "?biba,?mls", follow_symlinks=False), "biba/low")

    def test_a_missing_element_is_an_error_unless_it_may_be(self):
        self.assert_fails(errno.ENODATA, mac.get, self.path, "biba")
        self.assertEqual(mac.get(self.path, "?biba"), "")

    def test_text_that_is_no_label_is_refused(self):
        self.assertEqual(mac.canonical("mls/low,biba/high"), "biba/high,mls/low")
        self.assert_fails(errno.EINVAL, mac.canonical, "biba")
        self.assert_fails(errno.EINVAL, mac.get, self.path, "biba/high")
        with self.assertRaises(ValueError):
            mac.canonical("biba/high\0")

    @unittest.skipIf(mac.is_present(), "a module is loaded here")
    def test_without_a_module_processes_have_no_labels(self):
        self.assertEqual(mac.get_process(elements="?biba"), "")
        self.assertEqual(mac.get_process(os.getpid(), "?biba"), "")
        self.assert_fails(errno.ENODATA, mac.get_process, None, "biba")
        self.assert_fails(errno.ESRCH, mac.get_process, 0, "?biba")
        self.assert_fails(errno.EOPNOTSUPP, mac.set_process, "biba/low")
        self.assert_fails(errno.EOPNOTSUPP, mac.execve, "/bin/true", ["true"], {}, "biba/low")
        self.assert_fails(errno.ENOSYS, mac.call_module, "biba", 1)
        with self.assertRaises(ValueError):
            mac.execve("/bin/true", ["true\0"], {}, "biba/low")

    def test_a_name_that_is_no_module_is_refused(self):
        self.assert_fails(errno.EINVAL, mac.is_present, "Biba")
        self.assertFalse(mac.is_present("no_such_module"))


if __name__ == "__main__":
    unittest.main()
