package e2e

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// TestClaimIsMadeOfAnother needs no node: the copy is made by the controller, and the source may go when it is complete.
func TestClaimIsMadeOfAnother(t *testing.T) {
	beside(t)
	s := newScene(t)
	s.CreateClaim("source", s.ImmediateClass())
	s.WaitBound("source")
	contents := func(claim string) string {
		return filepath.Join(bed.Dev.StateDir, "volumes", s.Volume(claim).Spec.CSI.VolumeHandle, "file")
	}
	if bed.Dev != nil {
		if err := os.WriteFile(contents("source"), []byte("text"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.AddClaim(testbed.Clone(testbed.Claim(s.Namespace, "copy", s.ImmediateClass()), "source"))
	s.WaitBound("copy")
	if node := nodeOf(s.Volume("copy")); node != nodeOf(s.Volume("source")) {
		t.Errorf("the copy is on %s, the source on %s", node, nodeOf(s.Volume("source")))
	}
	s.DeleteClaim("source")
	if bed.Dev != nil {
		if text, err := os.ReadFile(contents("copy")); err != nil || string(text) != "text" {
			t.Errorf("the copy has %q, %v", text, err)
		}
	}
	s.DeleteClaim("copy")
	s.WaitNothingLeft()
}

// nodeOf is the node to which a volume is tied.
func nodeOf(v *corev1.PersistentVolume) string {
	return v.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
}

// TestClonesHaveTheContents copies directories, file systems and devices, and has pods look at the copies.
func TestClonesHaveTheContents(t *testing.T) {
	kubelet(t)
	beside(t)
	t.Run("Mounted", func(t *testing.T) {
		beside(t)
		s := newScene(t)
		classes := map[string]string{
			"directory": s.LateClass(),
			"ext4":      s.createClass("ext4", func(c *storagev1.StorageClass) { c.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "ext4"} }),
		}
		for name, class := range classes {
			s.CreateClaim(name, class)
			s.AddPod(Shell(s.Namespace, "write-"+name, testbed.FromClaim(name), "mkdir -p a/b; echo text >a/b/file; chmod 640 a/b/file; ln -s b a/link; sync"))
		}
		for name, class := range classes {
			s.WaitSucceeded("write-" + name)
			s.DeletePod("write-" + name)
			s.WaitNoPod("write-" + name)
			s.AddClaim(testbed.Clone(testbed.Claim(s.Namespace, "copy-"+name, class), name))
			s.AddPod(Shell(s.Namespace, "read-"+name, testbed.FromClaim("copy-"+name), `[ "$(cat a/link/file)" = text ]; [ "$(stat -c %a a/b/file)" = 640 ]; echo other >a/b/file`))
		}
		for name := range classes {
			s.WaitSucceeded("read-" + name)
			s.DeletePod("read-" + name)
			s.AddPod(Shell(s.Namespace, "again-"+name, testbed.FromClaim(name), `[ "$(cat a/b/file)" = text ]`))
		}
		for name := range classes {
			s.WaitSucceeded("again-" + name)
			s.DeletePod("again-" + name)
		}
		s.waitNoPods()
		for name := range classes {
			s.DeleteClaim(name)
			s.DeleteClaim("copy-" + name)
		}
		s.WaitNothingLeft()
	})
	t.Run("Devices", func(t *testing.T) {
		beside(t)
		s := newScene(t)
		s.CreateBlockClaim("source", s.LateClass())
		s.RunScript("writer", "source", "put 0 first; put 15 last")
		s.DeletePod("writer")
		s.WaitNoPod("writer")
		s.AddClaim(testbed.Clone(testbed.BlockClaim(s.Namespace, "copy", s.LateClass()), "source"))
		s.RunScript("reader", "copy", "has 0 first; has 15 last; put 0 other")
		s.RunScript("witness", "source", "has 0 first")
		s.DeletePod("reader")
		s.DeletePod("witness")
		s.waitNoPods()
		s.DeleteClaim("source")
		s.DeleteClaim("copy")
		s.WaitNothingLeft()
	})
}
