package controller

import "github.com/longshore-csi/longshore/csikit/snapshotapi"

func snapshotSecretKeys() snapshotapi.SecretKeys {
	return snapshotapi.SecretKeys{Name: snapshotapi.ParamSecretName, Namespace: snapshotapi.ParamSecretNamespace, Token: "volumesnapshot"}
}

func groupSecretKeys() snapshotapi.SecretKeys {
	return snapshotapi.SecretKeys{Name: snapshotapi.ParamGroupSecretName, Namespace: snapshotapi.ParamGroupSecretNamespace, Token: "volumegroupsnapshot"}
}

// secretParameters returns the parameters of a class that name secrets; no other is read.
func secretParameters(parameters map[string]string) map[string]string {
	var kept map[string]string
	for _, keys := range []snapshotapi.SecretKeys{snapshotSecretKeys(), groupSecretKeys()} {
		for _, key := range []string{keys.Name, keys.Namespace} {
			if value, ok := parameters[key]; ok {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
	}
	return kept
}
