//! Empty: this package contains only tests.
