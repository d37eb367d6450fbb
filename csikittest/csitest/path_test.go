package csitest_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikittest/csitest"
)

func TestTargetPaths(t *testing.T) {
	block := &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
	cases := map[string]struct {
		reason     string
		paths      bool
		capability *csi.VolumeCapability
		parent     string
		want       codes.Code
		exists     bool
		isDir      bool
	}{
		"Mount":    {reason: "a directory for a mount", paths: true, capability: writer(), exists: true, isDir: true},
		"Block":    {reason: "a file for a device", paths: true, capability: block, exists: true},
		"Off":      {reason: "nothing by default", capability: writer()},
		"NoParent": {reason: "the parent is the caller's to make", paths: true, capability: writer(), parent: "none", want: codes.Internal},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := csitest.New(csitest.Options{TargetPaths: c.paths, Node: []csi.NodeServiceCapability_RPC_Type{}})
			d.AddVolume(csitest.Volume{ID: "v", Nodes: []string{"node-1"}})
			target := filepath.Join(t.TempDir(), c.parent, "target")
			for range 2 {
				_, err := node(d).NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: "v", TargetPath: target, VolumeCapability: c.capability})
				wantCode(t, c.reason, err, c.want)
			}
			info, err := os.Stat(target)
			if (err == nil) != c.exists || err == nil && info.IsDir() != c.isDir {
				t.Errorf("%s: target path: %v, %v", c.reason, info, err)
			}
			if published := len(d.Volumes()[0].Published); (published == 1) != (c.want == codes.OK) {
				t.Errorf("%s: published %d times", c.reason, published)
			}
			for range 2 {
				_, err := node(d).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
				wantCode(t, c.reason, err, codes.OK)
			}
			if _, err := os.Stat(target); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: the target path is left: %v", c.reason, err)
			}
		})
	}
}

// The driver must not delete files that others have put into the target path.
func TestTargetPathWithContentsStays(t *testing.T) {
	d := csitest.New(csitest.Options{TargetPaths: true})
	target := t.TempDir()
	if err := os.WriteFile(filepath.Join(target, "precious"), nil, 0o600); err != nil {
		t.Fatalf("write: %v", err)
	}
	_, err := node(d).NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	wantCode(t, "the directory is not empty", err, codes.Internal)
	if _, err := os.Stat(filepath.Join(target, "precious")); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}
