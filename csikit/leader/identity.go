package leader

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
)

// serviceAccount is where a pod finds its namespace and its token.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

// identity returns the pod's name: from $POD_NAME, else from the service account's token, which the API server issues for
// one pod. The host's name, which the replaced components use, is the same for most pods. In the network of the host,
// however, it is the node's name, and two instances on that node would both believe that they hold the Lease.
// The name stays the same when a container restarts, so that a leader that crashed continues at once.
func identity(env, tokenFile string) string {
	host, _ := os.Hostname() // without a name, Run reports that there is no identity
	return cmp.Or(env, podOf(tokenFile), host)
}

// podOf returns the name of the pod that a service account token was issued for, or "".
func podOf(tokenFile string) string {
	token, err := os.ReadFile(tokenFile)
	if err != nil {
		return ""
	}
	parts := strings.Split(string(token), ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Pod struct {
				Name string `json:"name"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Kubernetes.Pod.Name
}
