// Package integration holds the tests that need a real API server: one control plane serves the tests of packages plane, apply,
// bootstrap and demo, as it takes longer to start than they take to run. Tests of the CustomResourceDefinitions in deploy/crds start API
// servers of their own. It has nothing to import; what needs no server is tested beside the code.
package integration
