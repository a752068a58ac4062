"""The package against the real library, on a machine without running daemons."""

import errno
import os
import socket
import subprocess
import sys
import threading
import unittest

import usher

NO_LIBRARY = "import usher; usher.connect_by_user('host', 'service')"


class Failing(unittest.TestCase):
    """Each call reports its own failures, by errno and in words."""

    def assert_fails(self, number, call, *arguments):
        with self.assertRaises(usher.UsherError) as raised:
            call(*arguments)
        error = raised.exception
        self.assertEqual(errno.errorcode[error.errno], errno.errorcode[number])
        self.assertTrue(error.strerror.startswith("usher_"), error)
        self.assertIsInstance(error, OSError)
        return error

    def test_a_name_that_is_none_is_refused(self):
        self.assert_fails(errno.EINVAL, usher.connect_by_user, "no such name", "imap")
        self.assert_fails(errno.EINVAL, usher.connect_by_user, "mailhost", "")
        with self.assertRaises(ValueError):
            usher.connect_by_user("mail\0host", "imap")

    @unittest.skipIf(os.path.exists("/run/usher/signer"), "a signer runs here")
    def test_without_a_signer_the_remedy_is_told(self):
        error = self.assert_fails(errno.ENETDOWN, usher.connect_by_user, "mailhost", "imap")
        self.assertIn("usher-signer.service", error.strerror)

    @unittest.skipIf(os.path.exists("/run/usher/keeper"), "a keeper runs here")
    def test_without_a_keeper_the_remedy_is_told(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for call in (usher.set_accept_mode, usher.ByUserListener):
                error = self.assert_fails(errno.ENETDOWN, call, listener)
                self.assertIn("usher-keeper.service", error.strerror)
            client = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
            with client, accepted:
                self.assert_fails(errno.ENETDOWN, usher.connection_info, accepted)

    def test_only_listening_tcp_sockets_have_a_mode(self):
        with socket.socket() as unbound, socket.socket(socket.AF_UNIX) as local:
            local.bind("")
            local.listen()
            for wrong in (unbound, local):
                self.assert_fails(errno.EINVAL, usher.set_accept_mode, wrong)
            self.assert_fails(errno.EINVAL, usher.set_accept_mode, unbound, 2)
        read, write = os.pipe()
        try:
            self.assert_fails(errno.ENOTSOCK, usher.set_accept_mode, read)
        finally:
            os.close(read)
            os.close(write)
        self.assert_fails(errno.EBADF, usher.set_accept_mode, -1)

    def test_without_the_mode_the_other_calls_are_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for call in (usher.pre_accept, usher.set_net_user, usher.accept_by_user):
                self.assert_fails(errno.EINVAL, call, listener)

    def test_only_a_connection_has_a_user(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.assert_fails(errno.ENOTCONN, usher.connection_info, listener)

    def test_each_thread_has_its_own_error(self):
        told = []

        def fail():
            try:
                usher.set_accept_mode(-1)
            except usher.UsherError as error:
                told.append(error.errno)

        thread = threading.Thread(target=fail)
        error = self.assert_fails(errno.EINVAL, usher.connect_by_user, "", "")
        thread.start()
        thread.join()
        self.assertEqual((error.errno, told), (errno.EINVAL, [errno.EBADF]))


class Loading(unittest.TestCase):
    """The library is loaded on demand, and its absence is explained."""

    def run_with(self, library):
        environment = {**os.environ, "USHER_LIBRARY": library}
        return subprocess.run(
            [sys.executable, "-c", NO_LIBRARY],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_missing_library_is_an_import_error_with_a_remedy(self):
        missing = self.run_with("/nonexistent/libusher.so")
        self.assertIn("ImportError", missing.stderr)
        self.assertIn("make install", missing.stderr)

    def test_another_library_is_told_from_this_one(self):
        other = self.run_with("libc.so.6")
        self.assertIn("ImportError", other.stderr)
        self.assertIn("has no usher_connect_by_user", other.stderr)


class Layout(unittest.TestCase):
    """The structure matches include/usher.h."""

    def test_the_library_takes_its_size(self):
        # A wrong size is EINVAL before any other check.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with self.assertRaises(usher.UsherError) as raised:
                usher.connection_info(listener)
        self.assertNotEqual(raised.exception.errno, errno.EINVAL)


if __name__ == "__main__":
    unittest.main()
