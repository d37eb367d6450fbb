package deploy

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// TestImagesHaveARegistry: each image is named with its registry, lest a container runtime takes it from a default where the name may belong to others; ours with
// the path of the organisation, unless a value names another one.
func TestImagesHaveARegistry(t *testing.T) {
	const own = "ghcr.io/longshore-csi/"
	all := everyManifest(t)
	for name, file := range map[string]string{"new-driver": library + "/testdata/new-driver.golden.yaml", "prometheus": "prometheus/prometheus.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = text
	}
	next := nextVersions(t)
	image := regexp.MustCompile(`(?m)^[- ]*image: "?([^"\s]+)"?$`)
	for name, text := range all {
		found := image.FindAllStringSubmatch(string(text), -1)
		for _, m := range found {
			if name == "new-driver" && m[1] == "foo:v0.1.0" {
				continue // what its author builds, and names
			}
			host, _, ok := strings.Cut(m[1], "/")
			if !ok || host != "localhost" && !strings.ContainsAny(host, ".:") {
				t.Errorf("%s: image %s names no registry", name, m[1])
			}
			module, _, _ := strings.Cut(path.Base(m[1]), ":")
			if next[module] != "" && !strings.HasPrefix(m[1], own) && !strings.HasSuffix(name, "everything") && !strings.HasSuffix(name, "everything.values.yaml") {
				t.Errorf("%s: image %s is not below %s", name, m[1], own)
			}
		}
		if len(found) == 0 {
			t.Errorf("%s: no image found", name)
		}
	}
}
