{{/* Who may connect to the pods. The kubelet's probes come from the pod's own node, which no policy refuses. */}}
{{- define "csi-driver-lib.network-policy" -}}
{{- if .Values.networkPolicy.enabled -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ include "csi-driver-lib.name" . }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels:
      app.kubernetes.io/part-of: {{ include "csi-driver-lib.name" . }}
  policyTypes: [Ingress]
  {{- $metadata := include "csi-driver-lib.metadata" . -}}
  {{- if or $metadata .Values.networkPolicy.metricsNamespaces }}
  ingress:
  {{- with .Values.networkPolicy.metricsNamespaces }}
  - from:
    - namespaceSelector:
        matchExpressions:
        - {key: kubernetes.io/metadata.name, operator: In, values: [{{ join ", " . }}]}
  {{- end }}
  {{- if $metadata }}
  - ports: # backup programs, which csi-snapshot-metadata authenticates
    - {port: metadata-grpc}
  {{- end }}
  {{- end }}
{{- end -}}
{{- end -}}
