package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestMakeReadsTheSame: make/images.mk takes binary, image and version of a component from versions.yaml by its layout.
func TestMakeReadsTheSame(t *testing.T) {
	const root = "../../.."
	data, err := os.ReadFile(root + "/versions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		t.Fatal(err)
	}
	images := 0
	for dir, m := range f.Modules {
		if m.Image == "" {
			continue
		}
		images++
		t.Run(dir, func(t *testing.T) {
			for version, args := range map[string][]string{m.Next: nil, "v7.8.9": {"VERSION=v7.8.9"}} {
				out := dryMake(t, root, append(args, "ARCH=arm64", "IMAGE_PREFIX=example/x", "image/"+dir)...)
				want := fmt.Sprintf("deploy/image %s %s example/x/%s %s arm64\n", dir, m.Binary, m.Image, version)
				if !strings.Contains(out, want) {
					t.Errorf("make %q runs\n%swant %s", args, out, want)
				}
			}
		})
	}
	if all := strings.Count(dryMake(t, root, "images"), "deploy/image "); all != images || images == 0 {
		t.Errorf("`make images` makes %d images of %d", all, images)
	}
	if out, err := exec.Command("make", "-C", root, "-n", "image/csikit").CombinedOutput(); err == nil {
		t.Errorf("a library has an image:\n%s", out)
	}
}

// TestKindLoadsWhatIsBuilt: with VERSION, images have that version in the cluster, too.
func TestKindLoadsWhatIsBuilt(t *testing.T) {
	out := dryMake(t, "../../..", "VERSION=v7.8.9", "IMAGE_PREFIX=example/x", "kind-load")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "deploy/kind-load ") && strings.Count(line, ":v7.8.9") == strings.Count(line, "example/x/") {
			return
		}
	}
	t.Errorf("make kind-load loads other images than it builds:\n%s", out)
}

// TestBase: BASE is for the image that has one; it is an error only to ask for it by name where there is none, which deploy/image tells.
func TestBase(t *testing.T) {
	const root, option = "../../..", "--build-arg BASE=a/b:c"
	tests := map[string]struct {
		reason string
		args   []string
		want   int
	}{
		"Driver":    {reason: "the driver's image has a base", args: []string{"image/hostpathdriver", "BASE=a/b:c"}, want: 1},
		"All":       {reason: "of all images only that", args: []string{"images", "BASE=a/b:c"}, want: 1},
		"Another":   {reason: "what is asked for is not left out in silence", args: []string{"image/attacher", "BASE=a/b:c"}, want: 1},
		"ByDefault": {reason: "there is none by default", args: []string{"images"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if out := dryMake(t, root, tc.args...); strings.Count(out, option+"\n") != tc.want {
				t.Errorf("%s: make %q runs\n%s", tc.reason, tc.args, out)
			}
		})
	}
	t.Setenv("BASE", "a/b:c")
	if out := dryMake(t, root, "images"); strings.Contains(out, option) {
		t.Errorf("BASE of the environment, which is anything, is taken:\n%s", out)
	}
	out, err := exec.Command(root+"/deploy/image", "attacher", "csi-attacher", "x/y", "v0.0.0", "amd64", "--build-arg", "BASE=a/b:c").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "attacher/Dockerfile takes no BASE") {
		t.Errorf("a base that is not used: %v\n%s", err, out)
	}
}

// dryMake prints what make would run; what the environment says of versions does not count.
func dryMake(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("make", append([]string{"-C", dir, "-n"}, args...)...)
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=")
	for _, name := range []string{"VERSION", "ARCH", "IMAGE_PREFIX"} {
		if _, set := os.LookupEnv(name); set {
			t.Skipf("%s is set in the environment, which make follows", name)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("make %q: %v\n%s", args, err, out)
	}
	return string(out)
}
