// Package commandtest tests what the command lines of components have in common, so that the tests of a
// component are tables of its own flags and values.
//
//	func TestBinary(t *testing.T) {
//		commandtest.Binary(t, "csi-attacher", NewOptions, "--worker-threads=-1")
//	}
//
//	func TestDefaults(t *testing.T) {
//		commandtest.Defaults(t, NewOptions, map[string]string{"timeout": "15s", "worker-threads": "10"})
//	}
//
//	func TestOptions(t *testing.T) {
//		commandtest.Validate(t, NewOptions, map[string]commandtest.Case{
//			"NoWorkers": {
//				Reason: "nothing would be done",
//				Args:   []string{"--worker-threads=0"},
//				Errors: []string{"--worker-threads=0: must be at least 1"},
//			},
//		})
//	}
//
//	func TestDependencies(t *testing.T) {
//		commandtest.Links(t, "./cmd/csi-attacher", map[string]string{"k8s.io/client-go/kubernetes": "links 56 API groups"})
//	}
//
// Files that are compared with what the code says (testdata/help.txt, docs/flags.md) are written instead
// when the environment variable REWRITE is set, or by "go test -rewrite" where the test binary has that
// flag, which reconciletest brings.
//
// It fits components that are built on csikit/command. What a component does once it runs is tested by
// other means: reconciletest, csitest, kubetest.
package commandtest
