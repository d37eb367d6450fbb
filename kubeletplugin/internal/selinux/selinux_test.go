package selinux

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const fedora = `process = "system_u:system_r:container_t:s0"
file = "system_u:object_r:container_file_t:s0"
ro_file="system_u:object_r:container_ro_file_t:s0"
`

// write makes files below a new root directory.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestLabels: what is missing in the options of a container comes from the policy of the machine.
func TestLabels(t *testing.T) {
	policy := map[string]string{"etc/selinux/config": "# SELINUXTYPE=other\nSELINUX=enforcing\nSELINUXTYPE=targeted\n", "etc/selinux/targeted/contexts/lxc_contexts": fedora}
	both := map[string]string{"usr/share/containers/selinux/contexts": `file = "u:r:container_t2:s0"`}
	for name, text := range policy {
		both[name] = text
	}
	cases := map[string]struct {
		reason string
		files  map[string]string
		o      *corev1.SELinuxOptions
		want   string
	}{
		"Level":     {reason: "all but the level is the policy's", files: policy, o: &corev1.SELinuxOptions{Level: "s0:c1,c2"}, want: "system_u:object_r:container_file_t:s0:c1,c2"},
		"User":      {reason: "the user is that of the container", files: policy, o: &corev1.SELinuxOptions{Level: "s0:c1", User: "me_u"}, want: "me_u:object_r:container_file_t:s0:c1"},
		"Process":   {reason: "role and type are those of processes", files: policy, o: &corev1.SELinuxOptions{Level: "s0", Role: "r", Type: "t"}, want: "system_u:object_r:container_file_t:s0"},
		"NoLevel":   {reason: "the container runtime selects one", files: policy, o: &corev1.SELinuxOptions{Type: "spc_t"}},
		"NoOptions": {reason: "nothing is asked for", files: policy},
		"Package":   {reason: "that of container-selinux comes first", files: both, o: &corev1.SELinuxOptions{Level: "s0"}, want: "u:r:container_t2:s0"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			labels := read(write(t, tc.files))
			if labels == nil {
				t.Fatalf("%s: there are no labels", tc.reason)
			}
			if got := labels(tc.o); got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

// TestNoPolicy: a machine whose policy says nothing of containers has no labels.
func TestNoPolicy(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"None":  nil,
		"Empty": {"etc/selinux/config": "SELINUXTYPE=targeted\n", "etc/selinux/targeted/contexts/lxc_contexts": ""},
		"Half":  {"usr/share/containers/selinux/contexts": "file = \"u:r\"\n"},
	} {
		t.Run(name, func(t *testing.T) {
			if labels := read(write(t, files)); labels != nil {
				t.Error("there are labels")
			}
		})
	}
}
