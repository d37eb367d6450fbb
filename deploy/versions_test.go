package deploy

import (
	"os"
	"path"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// nextVersions are the versions that this tree will release, by image.
func nextVersions(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../versions.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var versions struct {
		Modules map[string]struct{ Next, Image string }
	}
	if err := yaml.Unmarshal(data, &versions); err != nil {
		t.Fatal(err)
	}
	next := map[string]string{}
	for _, module := range versions.Modules {
		next[module.Image] = module.Next
	}
	return next
}

// TestImages: the manifests run the images that this tree makes, in the versions that it will release.
func TestImages(t *testing.T) {
	next := nextVersions(t)
	for _, overlay := range directories(t) {
		t.Run(overlay, func(t *testing.T) {
			for _, w := range allWorkloads(objects(t, overlay)) {
				for _, c := range w.pod.Spec.Containers {
					name, version, _ := strings.Cut(path.Base(c.Image), ":")
					if next[name] == "" || version != next[name] {
						t.Errorf("%s: %s runs %s, versions.yaml has %q", w.GetName(), c.Name, c.Image, next[name])
					}
				}
			}
		})
	}
}
