package deploy

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// stages reads the stages of a Dockerfile in order: what each is built on, its name, and the users that it names itself.
func stages(t *testing.T, dockerfile string) (all []stage) {
	t.Helper()
	from := regexp.MustCompile(`^FROM (\S+)(?: AS (\S+))?$`)
	for line := range strings.Lines(contentOf(t, dockerfile)) {
		line = strings.TrimSpace(line)
		if m := from.FindStringSubmatch(line); m != nil {
			all = append(all, stage{base: m[1], name: m[2]})
		}
		if user, found := strings.CutPrefix(line, "USER "); found && len(all) > 0 {
			all[len(all)-1].users = append(all[len(all)-1].users, user)
		}
	}
	if len(all) == 0 {
		t.Fatalf("%s has no stage", dockerfile)
	}
	return all
}

type stage struct {
	base, name string
	users      []string
}

// usersOf are those that the stage and the stages below it name.
func usersOf(all []stage, s stage) []string {
	users := slices.Clone(s.users)
	for _, below := range all {
		if below.name != "" && below.name == s.base {
			users = append(users, usersOf(all, below)...)
		}
	}
	return users
}

// TestImageNamesNoUser: an image that replaces another one runs with the same rights. The socket of a driver usually belongs to root, and
// another user cannot connect to it.
func TestImageNamesNoUser(t *testing.T) {
	dockerfiles, err := filepath.Glob("../*/Dockerfile")
	if err != nil || len(dockerfiles) < 6 {
		t.Fatalf("found %q: %v", dockerfiles, err)
	}
	for _, dockerfile := range dockerfiles {
		all := stages(t, dockerfile)
		if users := usersOf(all, all[len(all)-1]); len(users) > 0 {
			t.Errorf("%s: the default image runs as %q", dockerfile, users)
		}
	}
}

// TestNonRootVariants: images of components that only need the socket have a variant that does not run as root.
func TestNonRootVariants(t *testing.T) {
	for _, component := range []string{"provisioner", "attacher", "resizer", "snapshotter", "snapshotcontroller", "clusterregistrar", "healthmonitor", "livenessprobe"} {
		all := stages(t, "../"+component+"/Dockerfile")
		i := slices.IndexFunc(all, func(s stage) bool { return s.name == "nonroot" })
		if i < 0 || !slices.Equal(usersOf(all, all[i]), []string{"65532:65532"}) {
			t.Errorf("%s: stages %+v, want one named nonroot with user 65532:65532", component, all)
		}
	}
}

// TestManifestsNameTheUser: an image names none, and the kubelet refuses a container that must not be root unless a user is named.
func TestManifestsNameTheUser(t *testing.T) {
	for _, overlay := range directories(t) {
		t.Run(overlay, func(t *testing.T) {
			for _, w := range allWorkloads(objects(t, overlay)) {
				for _, c := range w.pod.Spec.Containers {
					if sc := c.SecurityContext; sc.RunAsNonRoot != nil && *sc.RunAsNonRoot && !runsAs(sc, 65532) {
						t.Errorf("%s: %s must not be root, and is no other user", w.GetName(), c.Name)
					}
				}
			}
		})
	}
}

func runsAs(sc *corev1.SecurityContext, user int64) bool {
	return sc.RunAsUser != nil && *sc.RunAsUser == user && sc.RunAsGroup != nil
}
