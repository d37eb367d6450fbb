package params

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

// FuzzParse looks for parameters that break the rules of this package: a reserved key that reaches the
// driver, or a secret with an impossible name.
func FuzzParse(f *testing.F) {
	f.Add("csi.storage.k8s.io/provisioner-secret-name", "${pvc.name}", "csi.storage.k8s.io/provisioner-secret-namespace", "ns")
	f.Add("fstype", "ext4", "FSTYPE", "xfs")
	f.Add("csi.storage.k8s.io/secret-name", "${", "csi.storage.k8s.io/secret-namespace", "$${}")
	f.Add("csiNodeStageSecretName", "a", "csiNodeStageSecretNamespace", "${pv.name}")
	f.Fuzz(func(t *testing.T, key1, value1, key2, value2 string) {
		class, err := Parse(map[string]string{key1: value1, key2: value2})
		if err != nil {
			return
		}
		for key := range class.Driver {
			if strings.HasPrefix(key, Prefix) {
				t.Errorf("reserved key %q reaches the driver", key)
			}
		}
		secrets, err := class.Resolve(values())
		if err != nil || secrets.Provision == nil {
			return
		}
		if len(validation.IsDNS1123Subdomain(secrets.Provision.Name)) > 0 || len(validation.IsDNS1123Label(secrets.Provision.Namespace)) > 0 {
			t.Errorf("secret %v of %q=%q, %q=%q has a name that no secret can have", secrets.Provision, key1, value1, key2, value2)
		}
	})
}
