{{- /* At most 52 characters, because a pod label consists of the StatefulSet's name and a hash. No dots, because
       it is also the name of a Service. */}}
{{- define "tidemark.operator" -}}
{{ .Release.Name | replace "." "-" | trunc 43 | trimSuffix "-" }}-operator
{{- end }}

{{- define "tidemark.account" -}}
{{ .Values.serviceAccount.name | default (include "tidemark.operator" .) }}
{{- end }}

{{- /* Account of broker pods or Export jobs: (root, account, suffix). "" for the namespace's default. */}}
{{- define "tidemark.podAccount" -}}
{{- $default := printf "%s-%s" (.root.Release.Name | trunc 55 | trimSuffix "-") .suffix -}}
{{ .account.name | default (ternary $default "" .account.create) }}
{{- end }}

{{- define "tidemark.brokerAccount" -}}
{{ include "tidemark.podAccount" (dict "root" . "account" .Values.brokerPods.serviceAccount "suffix" "brokers") }}
{{- end }}

{{- define "tidemark.exportAccount" -}}
{{ include "tidemark.podAccount" (dict "root" . "account" .Values.exports.serviceAccount "suffix" "exports") }}
{{- end }}

{{- /* Name of cluster-wide objects, which includes the namespace. */}}
{{- define "tidemark.nodes" -}}
{{ .Release.Namespace }}-{{ include "tidemark.operator" . }}-nodes
{{- end }}

{{- define "tidemark.image" -}}
{{- with .image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "tidemark.selector" -}}
app.kubernetes.io/name: tidemark-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tidemark.labels" -}}
{{ include "tidemark.selector" . }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemark.controllers" -}}
{{- $name := include "tidemark.operator" . -}}
{{- $addresses := list -}}
{{- range until (int .Values.operator.replicas) -}}
{{- $addresses = printf "%s-%d.%s.%s.svc:%d" $name . $name $.Release.Namespace (int $.Values.control.port) | append $addresses -}}
{{- end -}}
{{ join "," $addresses }}
{{- end }}

{{- /* Labels of broker pods. */}}
{{- define "tidemark.brokers" -}}
app.kubernetes.io/name: tidemark-broker
app.kubernetes.io/instance: {{ .Values.cluster.name | quote }}
{{- end }}

{{- define "tidemark.brokerLabels" -}}
app.kubernetes.io/name: tidemark-broker
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Labels of the pods of Export jobs. */}}
{{- define "tidemark.exports" -}}
app.kubernetes.io/name: tidemark-export
app.kubernetes.io/instance: {{ .Values.cluster.name | quote }}
{{- end }}

{{- /* Labels of the executor pods of Export jobs. */}}
{{- define "tidemark.executors" -}}
app.kubernetes.io/name: tidemark-executor
app.kubernetes.io/instance: {{ .Values.cluster.name | quote }}
{{- end }}

{{- define "tidemark.exportLabels" -}}
app.kubernetes.io/name: tidemark-export
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemark.hasBrokerPods" -}}
{{- if or .Values.brokerPods.replicas .Values.brokerPods.enabled -}}true{{- end -}}
{{- end }}

{{- /* spec.pod of a Broker and the pod template of a Cluster: (root, nodeSelector). */}}
{{- define "tidemark.brokerPod" -}}
{{- $pods := .root.Values.brokerPods -}}
image: {{ include "tidemark.image" (dict "root" .root "image" $pods.image) }}
imagePullPolicy: {{ $pods.image.pullPolicy }}
{{- with include "tidemark.brokerAccount" .root }}
serviceAccountName: {{ . | quote }}
{{- end }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
storage:
  size: {{ $pods.storage.size }}
  {{- with $pods.storage.className }}
  storageClassName: {{ . | quote }}
  {{- end }}
{{- with $pods.chunkCache.size }}
chunkCache: {size: {{ . }}}
{{- end }}
listeners:
  {{- range $name, $listener := $pods.listeners }}
  {{- if $listener }}
  - name: {{ $name | quote }}
    port: {{ $listener.port }}
    protocol: {{ $listener.protocol }}
    {{- with $listener.tlsSecret }}
    tlsSecretRef: {name: {{ . | quote }}}
    {{- end }}
    {{- with $listener.external }}
    external: {{- toYaml . | nindent 6 }}
    {{- end }}
  {{- end }}
  {{- end }}
replicationPort: {{ $pods.replicationPort }}
metricsPort: {{ $pods.metricsPort }}
{{- with $pods.config }}
config: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.resources }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ $pods.terminationGracePeriodSeconds }}
{{- with $pods.rackTopologyKey }}
rackTopologyKey: {{ . | quote }}
{{- end }}
{{- with merge (dict) (.nodeSelector | default dict) $pods.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with $pods.podLabels }}
podLabels: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $pods.podAnnotations }}
podAnnotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* Name of the temporary objects of `helm test`. */}}
{{- define "tidemark.test" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-test
{{- end }}

{{- define "tidemark.testSelector" -}}
app.kubernetes.io/name: tidemark-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tidemark.testLabels" -}}
{{ include "tidemark.testSelector" . }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* Annotations of such an object. The weight sets the order of creation. */}}
{{- define "tidemark.testHook" -}}
helm.sh/hook: test
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
helm.sh/hook-output-log-policy: hook-succeeded,hook-failed
{{- end }}
